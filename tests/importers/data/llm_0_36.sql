-- Written by llm 0.36, without its full-text index: make_llm_logs.py
BEGIN TRANSACTION;
CREATE TABLE "_llm_migrations" (
   "name" TEXT PRIMARY KEY,
   "applied_at" TEXT
);
INSERT INTO "_llm_migrations" VALUES('m001_initial','2026-11-16 05:38:47.004148+00:00');
INSERT INTO "_llm_migrations" VALUES('m002_id_primary_key','2026-11-16 05:38:47.060154+00:00');
INSERT INTO "_llm_migrations" VALUES('m003_chat_id_foreign_key','2026-11-16 05:38:47.173813+00:00');
INSERT INTO "_llm_migrations" VALUES('m004_column_order','2026-11-16 05:38:47.233311+00:00');
INSERT INTO "_llm_migrations" VALUES('m004_drop_provider','2026-11-16 05:38:47.288737+00:00');
INSERT INTO "_llm_migrations" VALUES('m005_debug','2026-11-16 05:38:47.328801+00:00');
INSERT INTO "_llm_migrations" VALUES('m006_new_logs_table','2026-11-16 05:38:47.460761+00:00');
INSERT INTO "_llm_migrations" VALUES('m007_finish_logs_table','2026-11-16 05:38:47.530966+00:00');
INSERT INTO "_llm_migrations" VALUES('m008_reply_to_id_foreign_key','2026-11-16 05:38:47.635958+00:00');
INSERT INTO "_llm_migrations" VALUES('m008_fix_column_order_in_logs','2026-11-16 05:38:47.724815+00:00');
INSERT INTO "_llm_migrations" VALUES('m009_delete_logs_table_if_empty','2026-11-16 05:38:47.772787+00:00');
INSERT INTO "_llm_migrations" VALUES('m010_create_new_log_tables','2026-11-16 05:38:47.860126+00:00');
INSERT INTO "_llm_migrations" VALUES('m011_fts_for_responses','2026-11-16 05:38:47.993496+00:00');
INSERT INTO "_llm_migrations" VALUES('m012_attachments_tables','2026-11-16 05:38:48.084106+00:00');
INSERT INTO "_llm_migrations" VALUES('m013_usage','2026-11-16 05:38:48.192187+00:00');
INSERT INTO "_llm_migrations" VALUES('m014_schemas','2026-11-16 05:38:48.527412+00:00');
INSERT INTO "_llm_migrations" VALUES('m015_fragments_tables','2026-11-16 05:38:48.695981+00:00');
INSERT INTO "_llm_migrations" VALUES('m016_fragments_table_pks','2026-11-16 05:38:48.827477+00:00');
INSERT INTO "_llm_migrations" VALUES('m017_tools_tables','2026-11-16 05:38:48.984136+00:00');
INSERT INTO "_llm_migrations" VALUES('m017_tools_plugin','2026-11-16 05:38:49.042870+00:00');
INSERT INTO "_llm_migrations" VALUES('m018_tool_instances','2026-11-16 05:38:49.228539+00:00');
INSERT INTO "_llm_migrations" VALUES('m019_resolved_model','2026-11-16 05:38:49.266654+00:00');
INSERT INTO "_llm_migrations" VALUES('m020_tool_results_attachments','2026-11-16 05:38:49.320287+00:00');
INSERT INTO "_llm_migrations" VALUES('m021_tool_results_exception','2026-11-16 05:38:49.363857+00:00');
INSERT INTO "_llm_migrations" VALUES('m022_response_reasoning','2026-11-16 05:38:49.418986+00:00');
INSERT INTO "_llm_migrations" VALUES('m023_message_store','2026-11-16 05:38:49.948120+00:00');
INSERT INTO "_llm_migrations" VALUES('m024_tool_instance_references','2026-11-16 05:38:50.281676+00:00');
INSERT INTO "_llm_migrations" VALUES('m025_turn_tools_instance_backfill','2026-11-16 05:38:50.304333+00:00');
INSERT INTO "_llm_migrations" VALUES('m026_message_tree_view','2026-11-16 05:38:50.396244+00:00');
INSERT INTO "_llm_migrations" VALUES('m027_turns_response_json','2026-11-16 05:38:50.444390+00:00');
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
INSERT INTO "fragments" VALUES(1,'a4d70d4d894431cbe952cc567f2f8bc9c80b4494ff23816949107ae872515824','A long text about foxes.','2026-11-16 05:38:50',NULL);
CREATE TABLE "messages" (
   "hash" TEXT PRIMARY KEY,
   "parent_hash" TEXT REFERENCES "messages"("hash"),
   "role" TEXT,
   "provider_metadata" TEXT
);
INSERT INTO "messages" VALUES('b2:792a0343423ee024cc3ff9d884568b6e',NULL,'system',NULL);
INSERT INTO "messages" VALUES('b2:d4a8183582f0779845d06a58e8645193','b2:792a0343423ee024cc3ff9d884568b6e','user',NULL);
INSERT INTO "messages" VALUES('b2:381d0650fde4599d6b25b35844f39cb2','b2:d4a8183582f0779845d06a58e8645193','assistant',NULL);
INSERT INTO "messages" VALUES('b2:1b815223897a2ea1016c5feff0e48347','b2:381d0650fde4599d6b25b35844f39cb2','user',NULL);
INSERT INTO "messages" VALUES('b2:c13a05a0d3ad9dc755f8d18639394951','b2:1b815223897a2ea1016c5feff0e48347','assistant',NULL);
INSERT INTO "messages" VALUES('b2:9adabf8dbb227fca019bd80a2ebb4de5','b2:c13a05a0d3ad9dc755f8d18639394951','user',NULL);
INSERT INTO "messages" VALUES('b2:357768ac11f07067069fa4f339c93b07','b2:9adabf8dbb227fca019bd80a2ebb4de5','assistant',NULL);
INSERT INTO "messages" VALUES('b2:eb5b12455d2098b6034eb095ca3490f0','b2:357768ac11f07067069fa4f339c93b07','user',NULL);
INSERT INTO "messages" VALUES('b2:6ca3464d8d2c9086505236f52bf3b4e4','b2:eb5b12455d2098b6034eb095ca3490f0','assistant',NULL);
INSERT INTO "messages" VALUES('b2:3facfb48fb0470ea6c345b3a9ba29854',NULL,'user',NULL);
INSERT INTO "messages" VALUES('b2:a957d4896f74a93f7e118ca06d769721','b2:3facfb48fb0470ea6c345b3a9ba29854','assistant',NULL);
INSERT INTO "messages" VALUES('b2:2c71a4a498e3c486e8ef45f3e10a4fa0','b2:a957d4896f74a93f7e118ca06d769721','tool',NULL);
INSERT INTO "messages" VALUES('b2:0a8ea73855a98d31b77bfde826bb9fd2','b2:2c71a4a498e3c486e8ef45f3e10a4fa0','assistant',NULL);
INSERT INTO "messages" VALUES('b2:8c0dbafd84a0dafd92e360c51a5b7bbc','b2:0a8ea73855a98d31b77bfde826bb9fd2','tool',NULL);
INSERT INTO "messages" VALUES('b2:eca6daf38f69b73c02a468db40c2e485','b2:8c0dbafd84a0dafd92e360c51a5b7bbc','assistant',NULL);
INSERT INTO "messages" VALUES('b2:3ffc179ba4d522cb456e90f3db4ed638',NULL,'user',NULL);
INSERT INTO "messages" VALUES('b2:a15d24565f4e656ce3be042e04b1b4c2','b2:3ffc179ba4d522cb456e90f3db4ed638','assistant',NULL);
INSERT INTO "messages" VALUES('b2:0d863d27fe8cc01ebb1b9abf33e54e26','b2:381d0650fde4599d6b25b35844f39cb2','user',NULL);
INSERT INTO "messages" VALUES('b2:b924bd655c4aa0833f6a2bc2e33d3b0a','b2:0d863d27fe8cc01ebb1b9abf33e54e26','assistant',NULL);
CREATE TABLE "part_attachments" (
   "part_id" INTEGER REFERENCES "parts"("id"),
   "attachment_id" TEXT REFERENCES "attachments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("part_id", "attachment_id", "order")
);
INSERT INTO "part_attachments" VALUES(9,'6b7fa434f92a8b80aab02d9bf1a12e49ffcae424e4013a1c4f68b67e3d2bbcd0',0);
CREATE TABLE "part_fragments" (
   "part_id" INTEGER REFERENCES "parts"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("part_id", "fragment_id", "order")
);
INSERT INTO "part_fragments" VALUES(12,1,0);
CREATE TABLE "parts" (
   "id" INTEGER PRIMARY KEY,
   "message_hash" TEXT REFERENCES "messages"("hash"),
   "position" INTEGER,
   "type" TEXT,
   "tool_name" TEXT,
   "text" TEXT,
   "payload" TEXT
);
INSERT INTO "parts" VALUES(1,'b2:792a0343423ee024cc3ff9d884568b6e',0,'text',NULL,'You translate.',NULL);
INSERT INTO "parts" VALUES(2,'b2:d4a8183582f0779845d06a58e8645193',0,'text',NULL,'Say hello in French',NULL);
INSERT INTO "parts" VALUES(3,'b2:381d0650fde4599d6b25b35844f39cb2',0,'reasoning',NULL,'Think about it. ',NULL);
INSERT INTO "parts" VALUES(4,'b2:381d0650fde4599d6b25b35844f39cb2',1,'text',NULL,'Bonjour',NULL);
INSERT INTO "parts" VALUES(5,'b2:1b815223897a2ea1016c5feff0e48347',0,'text',NULL,'Again',NULL);
INSERT INTO "parts" VALUES(6,'b2:c13a05a0d3ad9dc755f8d18639394951',0,'reasoning',NULL,'Think about it. ',NULL);
INSERT INTO "parts" VALUES(7,'b2:c13a05a0d3ad9dc755f8d18639394951',1,'text',NULL,'Encore bonjour',NULL);
INSERT INTO "parts" VALUES(8,'b2:9adabf8dbb227fca019bd80a2ebb4de5',0,'text',NULL,'What is this?',NULL);
INSERT INTO "parts" VALUES(9,'b2:9adabf8dbb227fca019bd80a2ebb4de5',1,'attachment',NULL,NULL,'{"attachment": {"id": "6b7fa434f92a8b80aab02d9bf1a12e49ffcae424e4013a1c4f68b67e3d2bbcd0"}}');
INSERT INTO "parts" VALUES(10,'b2:357768ac11f07067069fa4f339c93b07',0,'reasoning',NULL,'Think about it. ',NULL);
INSERT INTO "parts" VALUES(11,'b2:357768ac11f07067069fa4f339c93b07',1,'text',NULL,'A red dot',NULL);
INSERT INTO "parts" VALUES(12,'b2:eb5b12455d2098b6034eb095ca3490f0',0,'text',NULL,NULL,'{"text_ref": [{"fragment": 1}, {"literal": "\nSummarise"}]}');
INSERT INTO "parts" VALUES(13,'b2:6ca3464d8d2c9086505236f52bf3b4e4',0,'reasoning',NULL,'Think about it. ',NULL);
INSERT INTO "parts" VALUES(14,'b2:6ca3464d8d2c9086505236f52bf3b4e4',1,'text',NULL,'Summarised',NULL);
INSERT INTO "parts" VALUES(15,'b2:3facfb48fb0470ea6c345b3a9ba29854',0,'text',NULL,'Weather in Oslo?',NULL);
INSERT INTO "parts" VALUES(16,'b2:a957d4896f74a93f7e118ca06d769721',0,'tool_call','read_weather',NULL,'{"name": "read_weather", "arguments": {"city": "Oslo"}, "tool_call_id": "call_1"}');
INSERT INTO "parts" VALUES(17,'b2:2c71a4a498e3c486e8ef45f3e10a4fa0',0,'tool_result','read_weather',NULL,'{"name": "read_weather", "output": "Rain in Oslo", "tool_call_id": "call_1"}');
INSERT INTO "parts" VALUES(18,'b2:0a8ea73855a98d31b77bfde826bb9fd2',0,'tool_call','read_weather',NULL,'{"name": "read_weather", "arguments": {"city": "Atlantis"}, "tool_call_id": "call_1"}');
INSERT INTO "parts" VALUES(19,'b2:8c0dbafd84a0dafd92e360c51a5b7bbc',0,'tool_result','read_weather',NULL,'{"name": "read_weather", "output": "Error: no such city", "tool_call_id": "call_1", "exception": "ValueError: no such city"}');
INSERT INTO "parts" VALUES(20,'b2:eca6daf38f69b73c02a468db40c2e485',0,'reasoning',NULL,'Think about it. ',NULL);
INSERT INTO "parts" VALUES(21,'b2:eca6daf38f69b73c02a468db40c2e485',1,'text',NULL,'It rains in Oslo.',NULL);
INSERT INTO "parts" VALUES(22,'b2:3ffc179ba4d522cb456e90f3db4ed638',0,'text',NULL,'One question, and no conversation',NULL);
INSERT INTO "parts" VALUES(23,'b2:a15d24565f4e656ce3be042e04b1b4c2',0,'reasoning',NULL,'Think about it. ',NULL);
INSERT INTO "parts" VALUES(24,'b2:a15d24565f4e656ce3be042e04b1b4c2',1,'text',NULL,'Alone',NULL);
INSERT INTO "parts" VALUES(25,'b2:0d863d27fe8cc01ebb1b9abf33e54e26',0,'text',NULL,'In Spanish',NULL);
INSERT INTO "parts" VALUES(26,'b2:b924bd655c4aa0833f6a2bc2e33d3b0a',0,'text',NULL,'Hola',NULL);
CREATE TABLE "prompt_attachments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "attachment_id" TEXT REFERENCES "attachments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "attachment_id")
);
CREATE TABLE "prompt_fragments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "fragment_id", "order")
);
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
, "resolved_model" TEXT, "reasoning" TEXT);
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
CREATE TABLE "threads" (
   "id" TEXT PRIMARY KEY,
   "name" TEXT,
   "tip_message_hash" TEXT REFERENCES "messages"("hash"),
   "forked_from" TEXT REFERENCES "threads"("id"),
   "datetime_utc" TEXT
);
INSERT INTO "threads" VALUES('01m7hdv0z09hgf4khs4xnn9xn5','Say hello in French','b2:6ca3464d8d2c9086505236f52bf3b4e4',NULL,'2026-11-16 05:38:50.466366+00:00');
INSERT INTO "threads" VALUES('01m7hdv13y4hfsyv5k1pqnrvvg','Weather in Oslo?','b2:eca6daf38f69b73c02a468db40c2e485',NULL,'2026-11-16 05:38:50.630544+00:00');
INSERT INTO "threads" VALUES('01m7hdv17rwqgp8bwtd0fw7p2c','One question, and no conversati…','b2:a15d24565f4e656ce3be042e04b1b4c2',NULL,'2026-11-16 05:38:50.744793+00:00');
INSERT INTO "threads" VALUES('01m7hdv1a48z987y0wr84hsj51','In Spanish','b2:b924bd655c4aa0833f6a2bc2e33d3b0a','01m7hdv0z09hgf4khs4xnn9xn5','2026-11-16 05:38:50.820200+00:00');
CREATE TABLE "tool_calls" (
   "id" INTEGER PRIMARY KEY,
   "response_id" TEXT REFERENCES "responses"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "name" TEXT,
   "arguments" TEXT,
   "tool_call_id" TEXT
);
CREATE TABLE "tool_instances" (
   "id" INTEGER PRIMARY KEY,
   "plugin" TEXT,
   "name" TEXT,
   "arguments" TEXT
);
CREATE TABLE "tool_instantiations" (
   "turn_id" TEXT REFERENCES "turns"("id"),
   "tool_call_id" TEXT,
   "instance_id" INTEGER REFERENCES "tool_instances"("id"),
   PRIMARY KEY ("turn_id", "tool_call_id")
);
CREATE TABLE "tool_responses" (
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "response_id" TEXT REFERENCES "responses"("id"),
   PRIMARY KEY ("tool_id", "response_id")
);
CREATE TABLE "tool_results" (
   "id" INTEGER PRIMARY KEY,
   "response_id" TEXT REFERENCES "responses"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "name" TEXT,
   "output" TEXT,
   "tool_call_id" TEXT,
   "instance_id" INTEGER REFERENCES "tool_instances"("id")
, "exception" TEXT);
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
CREATE TABLE "turn_fragments" (
   "turn_id" TEXT REFERENCES "turns"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   "kind" TEXT,
   PRIMARY KEY ("turn_id", "fragment_id", "kind", "order")
);
INSERT INTO "turn_fragments" VALUES('01m7hdv12m3vz2aec0gjpvthy4',1,0,'prompt');
CREATE TABLE "turn_search" (
   "id" INTEGER PRIMARY KEY,
   "turn_id" TEXT REFERENCES "turns"("id"),
   "prompt" TEXT,
   "response" TEXT
);
INSERT INTO "turn_search" VALUES(1,'01m7hdv0z09hgf4khs4xnn9xn6','Say hello in French','Bonjour');
INSERT INTO "turn_search" VALUES(2,'01m7hdv103np7v8njesgc54mgz','Again','Encore bonjour');
INSERT INTO "turn_search" VALUES(3,'01m7hdv119v400k1dq8ktpjp6t','What is this?','A red dot');
INSERT INTO "turn_search" VALUES(4,'01m7hdv12m3vz2aec0gjpvthy4','
Summarise','Summarised');
INSERT INTO "turn_search" VALUES(5,'01m7hdv145q9mcq1nzs0mznysb','Weather in Oslo?','');
INSERT INTO "turn_search" VALUES(6,'01m7hdv146dj0tck5h4wdadgrq','','It rains in Oslo.');
INSERT INTO "turn_search" VALUES(7,'01m7hdv17rwqgp8bwtd0fw7p2b','One question, and no conversation','Alone');
CREATE TABLE "turn_tools" (
   "turn_id" TEXT REFERENCES "turns"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "instance_id" INTEGER REFERENCES "tool_instances"("id"),
   PRIMARY KEY ("turn_id", "tool_id")
);
INSERT INTO "turn_tools" VALUES('01m7hdv145q9mcq1nzs0mznysb',1,NULL);
INSERT INTO "turn_tools" VALUES('01m7hdv146dj0tck5h4wdadgrp',1,NULL);
INSERT INTO "turn_tools" VALUES('01m7hdv146dj0tck5h4wdadgrq',1,NULL);
CREATE TABLE "turns" (
   "id" TEXT PRIMARY KEY,
   "thread_id" TEXT REFERENCES "threads"("id"),
   "parent_message_hash" TEXT REFERENCES "messages"("hash"),
   "tip_message_hash" TEXT REFERENCES "messages"("hash"),
   "model" TEXT,
   "resolved_model" TEXT,
   "options_json" TEXT,
   "schema_id" TEXT REFERENCES "schemas"("id"),
   "input_tokens" INTEGER,
   "output_tokens" INTEGER,
   "token_details" TEXT,
   "duration_ms" INTEGER,
   "datetime_utc" TEXT
, "response_json" TEXT);
INSERT INTO "turns" VALUES('01m7hdv0z09hgf4khs4xnn9xn6','01m7hdv0z09hgf4khs4xnn9xn5','b2:d4a8183582f0779845d06a58e8645193','b2:381d0650fde4599d6b25b35844f39cb2','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.464280+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv103np7v8njesgc54mgz','01m7hdv0z09hgf4khs4xnn9xn5','b2:1b815223897a2ea1016c5feff0e48347','b2:c13a05a0d3ad9dc755f8d18639394951','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.499764+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv119v400k1dq8ktpjp6t','01m7hdv0z09hgf4khs4xnn9xn5','b2:9adabf8dbb227fca019bd80a2ebb4de5','b2:357768ac11f07067069fa4f339c93b07','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.538004+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv12m3vz2aec0gjpvthy4','01m7hdv0z09hgf4khs4xnn9xn5','b2:eb5b12455d2098b6034eb095ca3490f0','b2:6ca3464d8d2c9086505236f52bf3b4e4','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.580405+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv145q9mcq1nzs0mznysb','01m7hdv13y4hfsyv5k1pqnrvvg','b2:3facfb48fb0470ea6c345b3a9ba29854','b2:a957d4896f74a93f7e118ca06d769721','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.629865+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv146dj0tck5h4wdadgrp','01m7hdv13y4hfsyv5k1pqnrvvg','b2:2c71a4a498e3c486e8ef45f3e10a4fa0','b2:0a8ea73855a98d31b77bfde826bb9fd2','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.630030+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv146dj0tck5h4wdadgrq','01m7hdv13y4hfsyv5k1pqnrvvg','b2:8c0dbafd84a0dafd92e360c51a5b7bbc','b2:eca6daf38f69b73c02a468db40c2e485','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.630111+00:00',NULL);
INSERT INTO "turns" VALUES('01m7hdv17rwqgp8bwtd0fw7p2b','01m7hdv17rwqgp8bwtd0fw7p2c','b2:3ffc179ba4d522cb456e90f3db4ed638','b2:a15d24565f4e656ce3be042e04b1b4c2','scripted','scripted-2026-01-01',NULL,NULL,12,5,'{"cached_tokens": 3}',0,'2026-11-16T05:38:50.744191+00:00',NULL);
CREATE UNIQUE INDEX "idx_fragments_hash"
    ON "fragments" ("hash");
CREATE UNIQUE INDEX "idx_tools_hash"
    ON "tools" ("hash");
CREATE INDEX "idx_messages_parent_hash"
    ON "messages" ("parent_hash");
CREATE UNIQUE INDEX "idx_parts_message_hash_position"
    ON "parts" ("message_hash", "position");
CREATE INDEX "idx_part_fragments_fragment_id"
    ON "part_fragments" ("fragment_id");
CREATE INDEX "idx_turns_thread_id"
    ON "turns" ("thread_id");
CREATE INDEX "idx_turn_fragments_fragment_id"
    ON "turn_fragments" ("fragment_id");
CREATE UNIQUE INDEX "idx_turn_search_turn_id"
    ON "turn_search" ("turn_id");
CREATE VIEW "message_tree" AS with recursive msg as (
  select m.hash, m.parent_hash, m.role, m.rowid as rid,
    replace(coalesce(
      nullif(p.text, ''),
      (select f.content from part_fragments pf
       join fragments f on f.id = pf.fragment_id
       where pf.part_id = p.id
       order by pf."order" limit 1),
      '[' || coalesce(p.type, 'empty') || ']'
    ), char(10), ' ') as text,
    (select group_concat(p2.tool_name, ', ') from parts p2
     where p2.message_hash = m.hash and p2.type = 'tool_result'
       and p2.tool_name is not null) as tools
  from messages m
  left join parts p on p.message_hash = m.hash and p.position = 0
),
tree as (
  select hash, text, tools, 0 as depth,
    printf('%012d', rid) as path, hash as root_hash
  from msg where parent_hash is null
  union all
  select msg.hash, msg.text, msg.tools, t.depth + 1,
    t.path || '/' || printf('%012d', msg.rid),
    t.root_hash
  from msg join tree t on msg.parent_hash = t.hash
),
turn_chain as (
  select t.id as turn_id, t.datetime_utc, m.hash, m.parent_hash
  from turns t join messages m on m.hash = t.tip_message_hash
  union all
  select tc.turn_id, tc.datetime_utc, m.hash, m.parent_hash
  from turn_chain tc join messages m on m.hash = tc.parent_hash
)
select
  t.root_hash,
  strftime('%Y-%m-%d %H:%M:%S',
    (select min(tc.datetime_utc) from turn_chain tc where tc.hash = t.hash)
  ) as datetime,
  replace(hex(zeroblob(t.depth)), '00', '    ') || substr(t.text, 1, 60)
    as message,
  coalesce(t.tools, '') as tools,
  t.hash as message_hash,
  t.path
from tree t
order by t.path;
COMMIT;
