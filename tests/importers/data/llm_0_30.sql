-- Written by llm 0.30, without its full-text index: make_llm_logs.py
BEGIN TRANSACTION;
CREATE TABLE "_llm_migrations" (
   "name" TEXT PRIMARY KEY,
   "applied_at" TEXT
);
INSERT INTO "_llm_migrations" VALUES('m001_initial','2026-11-16 05:38:41.872128+00:00');
INSERT INTO "_llm_migrations" VALUES('m002_id_primary_key','2026-11-16 05:38:41.926254+00:00');
INSERT INTO "_llm_migrations" VALUES('m003_chat_id_foreign_key','2026-11-16 05:38:42.032285+00:00');
INSERT INTO "_llm_migrations" VALUES('m004_column_order','2026-11-16 05:38:42.101204+00:00');
INSERT INTO "_llm_migrations" VALUES('m004_drop_provider','2026-11-16 05:38:42.156232+00:00');
INSERT INTO "_llm_migrations" VALUES('m005_debug','2026-11-16 05:38:42.220301+00:00');
INSERT INTO "_llm_migrations" VALUES('m006_new_logs_table','2026-11-16 05:38:42.342557+00:00');
INSERT INTO "_llm_migrations" VALUES('m007_finish_logs_table','2026-11-16 05:38:42.392114+00:00');
INSERT INTO "_llm_migrations" VALUES('m008_reply_to_id_foreign_key','2026-11-16 05:38:42.452248+00:00');
INSERT INTO "_llm_migrations" VALUES('m008_fix_column_order_in_logs','2026-11-16 05:38:42.504117+00:00');
INSERT INTO "_llm_migrations" VALUES('m009_delete_logs_table_if_empty','2026-11-16 05:38:42.560156+00:00');
INSERT INTO "_llm_migrations" VALUES('m010_create_new_log_tables','2026-11-16 05:38:42.612095+00:00');
INSERT INTO "_llm_migrations" VALUES('m011_fts_for_responses','2026-11-16 05:38:42.714580+00:00');
INSERT INTO "_llm_migrations" VALUES('m012_attachments_tables','2026-11-16 05:38:42.784104+00:00');
INSERT INTO "_llm_migrations" VALUES('m013_usage','2026-11-16 05:38:42.868224+00:00');
INSERT INTO "_llm_migrations" VALUES('m014_schemas','2026-11-16 05:38:43.144169+00:00');
INSERT INTO "_llm_migrations" VALUES('m015_fragments_tables','2026-11-16 05:38:43.324103+00:00');
INSERT INTO "_llm_migrations" VALUES('m016_fragments_table_pks','2026-11-16 05:38:43.428185+00:00');
INSERT INTO "_llm_migrations" VALUES('m017_tools_tables','2026-11-16 05:38:43.572110+00:00');
INSERT INTO "_llm_migrations" VALUES('m017_tools_plugin','2026-11-16 05:38:43.632013+00:00');
INSERT INTO "_llm_migrations" VALUES('m018_tool_instances','2026-11-16 05:38:43.776493+00:00');
INSERT INTO "_llm_migrations" VALUES('m019_resolved_model','2026-11-16 05:38:43.820477+00:00');
INSERT INTO "_llm_migrations" VALUES('m020_tool_results_attachments','2026-11-16 05:38:43.882704+00:00');
INSERT INTO "_llm_migrations" VALUES('m021_tool_results_exception','2026-11-16 05:38:43.936172+00:00');
CREATE TABLE "attachments" (
   "id" TEXT PRIMARY KEY,
   "type" TEXT,
   "path" TEXT,
   "url" TEXT,
   "content" BLOB
);
INSERT INTO "attachments" VALUES('6b7fa434f92a8b80aab02d9bf1a12e49ffcae424e4013a1c4f68b67e3d2bbcd0','image/png',NULL,NULL,X'89504E470D0A1A0A0000000D49484452000000010000000108060000001F15C4890000000D4944415478DA6364F8CF500F00038601805A347D6B0000000049454E44AE426082');
CREATE TABLE "conversations" (
   "id" TEXT PRIMARY KEY,
   "name" TEXT,
   "model" TEXT
);
INSERT INTO "conversations" VALUES('01m7hdttkmh6wj4pgjztfvke36','Say hello in French','scripted');
INSERT INTO "conversations" VALUES('01m7hdtttwrb3rbz2sybx47t6y','Weather in Oslo?','scripted');
INSERT INTO "conversations" VALUES('01m7hdtv4ywr3k6x0p8cx2s1c0','One question, and no conversati…','scripted');
CREATE TABLE "fragment_aliases" (
   "alias" TEXT PRIMARY KEY,
   "fragment_id" INTEGER REFERENCES "fragments"("id")
);
CREATE TABLE "fragments" (
   "id" INTEGER PRIMARY KEY,
   "hash" TEXT,
   "content" TEXT,
   "datetime_utc" TEXT,
   "source" TEXT
);
INSERT INTO "fragments" VALUES(1,'a4d70d4d894431cbe952cc567f2f8bc9c80b4494ff23816949107ae872515824','A long text about foxes.','2026-11-16 05:38:44',NULL);
CREATE TABLE "prompt_attachments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "attachment_id" TEXT REFERENCES "attachments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "attachment_id")
);
INSERT INTO "prompt_attachments" VALUES('01m7hdttp89checetd4gaxarv2','6b7fa434f92a8b80aab02d9bf1a12e49ffcae424e4013a1c4f68b67e3d2bbcd0',0);
CREATE TABLE "prompt_fragments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "fragment_id", "order")
);
INSERT INTO "prompt_fragments" VALUES('01m7hdttrrgk5mbp2xgwhxmrfk',1,0);
CREATE TABLE "responses" (
   "id" TEXT PRIMARY KEY,
   "model" TEXT,
   "prompt" TEXT,
   "system" TEXT,
   "prompt_json" TEXT,
   "options_json" TEXT,
   "response" TEXT,
   "response_json" TEXT,
   "conversation_id" TEXT REFERENCES "conversations"("id"),
   "duration_ms" INTEGER,
   "datetime_utc" TEXT,
   "input_tokens" INTEGER,
   "output_tokens" INTEGER,
   "token_details" TEXT,
   "schema_id" TEXT REFERENCES "schemas"("id")
, "resolved_model" TEXT);
INSERT INTO "responses" VALUES('01m7hdttkmh6wj4pgjztfvke37','scripted','Say hello in French','You translate.',NULL,'{}','Bonjour',NULL,'01m7hdttkmh6wj4pgjztfvke36',0,'2026-11-16T05:38:43.956232+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdttngmn1ykx5yedrsw6jt','scripted','Again',NULL,NULL,'{}','Encore bonjour',NULL,'01m7hdttkmh6wj4pgjztfvke36',0,'2026-11-16T05:38:44.016179+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdttp89checetd4gaxarv2','scripted','What is this?',NULL,NULL,'{}','A red dot',NULL,'01m7hdttkmh6wj4pgjztfvke36',0,'2026-11-16T05:38:44.040209+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdttrrgk5mbp2xgwhxmrfk','scripted','Summarise',NULL,NULL,'{}','Summarised',NULL,'01m7hdttkmh6wj4pgjztfvke36',0,'2026-11-16T05:38:44.120205+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdtttys0v5jtq1svee9kk4','scripted','Weather in Oslo?',NULL,NULL,'{}','',NULL,'01m7hdtttwrb3rbz2sybx47t6y',0,'2026-11-16T05:38:44.190054+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdtttys0v5jtq1svee9kk5','scripted','',NULL,NULL,'{}','',NULL,'01m7hdtttwrb3rbz2sybx47t6y',0,'2026-11-16T05:38:44.190130+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdtttys0v5jtq1svee9kk6','scripted','',NULL,NULL,'{}','It rains in Oslo.',NULL,'01m7hdtttwrb3rbz2sybx47t6y',0,'2026-11-16T05:38:44.190163+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
INSERT INTO "responses" VALUES('01m7hdtv4ywr3k6x0p8cx2s1bz','scripted','One question, and no conversation',NULL,NULL,'{}','Alone',NULL,'01m7hdtv4ywr3k6x0p8cx2s1c0',0,'2026-11-16T05:38:44.510399+00:00',12,5,'{"cached_tokens": 3}',NULL,'scripted-2026-01-01');
CREATE TABLE "schemas" (
   "id" TEXT PRIMARY KEY,
   "content" TEXT
);
CREATE TABLE "system_fragments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "fragment_id", "order")
);
CREATE TABLE "tool_calls" (
   "id" INTEGER PRIMARY KEY,
   "response_id" TEXT REFERENCES "responses"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "name" TEXT,
   "arguments" TEXT,
   "tool_call_id" TEXT
);
INSERT INTO "tool_calls" VALUES(1,'01m7hdtttys0v5jtq1svee9kk4',1,'read_weather','{"city": "Oslo"}','call_1');
INSERT INTO "tool_calls" VALUES(2,'01m7hdtttys0v5jtq1svee9kk5',1,'read_weather','{"city": "Atlantis"}','call_1');
CREATE TABLE "tool_instances" (
   "id" INTEGER PRIMARY KEY,
   "plugin" TEXT,
   "name" TEXT,
   "arguments" TEXT
);
CREATE TABLE "tool_responses" (
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "response_id" TEXT REFERENCES "responses"("id"),
   PRIMARY KEY ("tool_id", "response_id")
);
INSERT INTO "tool_responses" VALUES(1,'01m7hdtttys0v5jtq1svee9kk4');
INSERT INTO "tool_responses" VALUES(1,'01m7hdtttys0v5jtq1svee9kk5');
INSERT INTO "tool_responses" VALUES(1,'01m7hdtttys0v5jtq1svee9kk6');
CREATE TABLE "tool_results" (
   "id" INTEGER PRIMARY KEY,
   "response_id" TEXT REFERENCES "responses"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "name" TEXT,
   "output" TEXT,
   "tool_call_id" TEXT,
   "instance_id" INTEGER REFERENCES "tool_instances"("id")
, "exception" TEXT);
INSERT INTO "tool_results" VALUES(1,'01m7hdtttys0v5jtq1svee9kk5',1,'read_weather','Rain in Oslo','call_1',NULL,NULL);
INSERT INTO "tool_results" VALUES(2,'01m7hdtttys0v5jtq1svee9kk6',1,'read_weather','Error: no such city','call_1',NULL,'ValueError: no such city');
CREATE TABLE "tool_results_attachments" (
   "tool_result_id" INTEGER REFERENCES "tool_results"("id"),
   "attachment_id" TEXT REFERENCES "attachments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("tool_result_id", "attachment_id")
);
CREATE TABLE "tools" (
   "id" INTEGER PRIMARY KEY,
   "hash" TEXT,
   "name" TEXT,
   "description" TEXT,
   "input_schema" TEXT
, "plugin" TEXT);
INSERT INTO "tools" VALUES(1,'2800cdb4d31b431a51cb65a2669d0d28e3b49f16f9cca4267c5ef611851a8ad5','read_weather','Weather of a city.','{"properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object"}',NULL);
CREATE UNIQUE INDEX "idx_fragments_hash"
    ON "fragments" ("hash");
CREATE UNIQUE INDEX "idx_tools_hash"
    ON "tools" ("hash");
COMMIT;
