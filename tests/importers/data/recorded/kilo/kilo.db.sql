CREATE TABLE `session` (
          `id` text PRIMARY KEY,
          `project_id` text NOT NULL,
          `workspace_id` text,
          `parent_id` text,
          `slug` text NOT NULL,
          `directory` text NOT NULL,
          `path` text,
          `title` text NOT NULL,
          `version` text NOT NULL,
          `share_url` text,
          `summary_additions` integer,
          `summary_deletions` integer,
          `summary_files` integer,
          `summary_diffs` text,
          `metadata` text,
          `cost` real DEFAULT 0 NOT NULL,
          `tokens_input` integer DEFAULT 0 NOT NULL,
          `tokens_output` integer DEFAULT 0 NOT NULL,
          `tokens_reasoning` integer DEFAULT 0 NOT NULL,
          `tokens_cache_read` integer DEFAULT 0 NOT NULL,
          `tokens_cache_write` integer DEFAULT 0 NOT NULL,
          `revert` text,
          `permission` text,
          `agent` text,
          `model` text,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `time_compacting` integer,
          `time_archived` integer
);
INSERT INTO session VALUES ('ses_e138e131cffebvgrjEaZcSdsmQ', 'global', NULL, NULL, 'curious-rocket', '/home/user/project', 'home/user/project', 'Ahoy.', '7.7.9', NULL, 0, 0, 0, NULL, NULL, 0.0057, 5400, 120, 0, 600, 0, NULL, NULL, 'code', '{"id": "m1", "providerID": "local", "variant": "default"}', 1794968251619, 1794968279489, NULL, NULL);
INSERT INTO session VALUES ('ses_e138dc8e9ffe1yWfK494O1HXs3', 'global', NULL, 'ses_e138e131cffebvgrjEaZcSdsmQ', 'quick-meadow', '/home/user/project', 'home/user/project', 'Greet (@general subagent)', '7.7.9', NULL, 0, 0, 0, NULL, NULL, 0.00095, 900, 20, 0, 100, 0, NULL, '[{"permission": "suggest", "pattern": "*", "action": "deny"}, {"permission": "repo_clone", "action": "deny", "pattern": "*"}, {"permission": "question", "action": "deny", "pattern": "*"}, {"permission": "task", "action": "deny", "pattern": "*"}]', 'general', '{"id": "m1", "providerID": "local", "variant": "default"}', 1794968270614, 1794968273851, NULL, NULL);
CREATE TABLE `message` (
          `id` text PRIMARY KEY,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL
);
INSERT INTO message VALUES ('msg_1ec71f0b6001sYYXPSC8PLr4Kn', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968252598, 1794968268195, '{"role": "user", "time": {"created": 1794968252598}, "agent": "code", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec720ce9001n0WgzdSbwc6LvT', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968259817, 1794968265826, '{"parentID": "msg_1ec71f0b6001sYYXPSC8PLr4Kn", "role": "assistant", "mode": "code", "agent": "code", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968259817, "completed": 1794968265823}, "finish": "tool-calls"}');
INSERT INTO message VALUES ('msg_1ec7224ab001EX0LRChpYgggQ7', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968265899, 1794968267875, '{"parentID": "msg_1ec71f0b6001sYYXPSC8PLr4Kn", "role": "assistant", "mode": "code", "agent": "code", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968265899, "completed": 1794968267868}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec722d63001X56kV6adK4yrZN', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968268131, 1794968276413, '{"role": "user", "time": {"created": 1794968268131}, "agent": "code", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec722f4d001JJfFekYb3U2bJ8', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968268621, 1794968274564, '{"parentID": "msg_1ec722d63001X56kV6adK4yrZN", "role": "assistant", "mode": "code", "agent": "code", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.0019, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968268621, "completed": 1794968274557}, "finish": "tool-calls"}');
INSERT INTO message VALUES ('msg_1ec7238a1001tJNOkJHvcQOjXH', 'ses_e138dc8e9ffe1yWfK494O1HXs3', 1794968271034, 1794968273883, '{"role": "user", "time": {"created": 1794968271034}, "tools": {"question": false, "task": false}, "agent": "general", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec723ad2001Xoj8V41rzsd1yI', 'ses_e138dc8e9ffe1yWfK494O1HXs3', 1794968271571, 1794968273789, '{"parentID": "msg_1ec7238a1001tJNOkJHvcQOjXH", "role": "assistant", "mode": "general", "agent": "general", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968271571, "completed": 1794968273784}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec7246d3001ns8BWBd7gjSdpS', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968274643, 1794968276027, '{"parentID": "msg_1ec722d63001X56kV6adK4yrZN", "role": "assistant", "mode": "code", "agent": "code", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968274643, "completed": 1794968276025}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec724d88001mHFKu5e85WrWtF', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968276360, 1794968277495, '{"role": "user", "model": {"providerID": "local", "modelID": "m1"}, "agent": "code", "time": {"created": 1794968276360}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec724e770013NsFM2RHdXCoX0', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968276599, 1794968277352, '{"role": "assistant", "parentID": "msg_1ec724d88001mHFKu5e85WrWtF", "mode": "compaction", "agent": "compaction", "summary": true, "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968276599, "completed": 1794968277347}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec72527b001NS2B88gl4H2eDg', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277627, 1794968279503, '{"role": "user", "time": {"created": 1794968277627}, "agent": "code", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec7253e0001m61HRQOXuuJ03e', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277984, 1794968279458, '{"parentID": "msg_1ec72527b001NS2B88gl4H2eDg", "role": "assistant", "mode": "code", "agent": "code", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968277984, "completed": 1794968279453}, "finish": "stop"}');
CREATE TABLE `part` (
          `id` text PRIMARY KEY,
          `message_id` text NOT NULL,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL
);
INSERT INTO part VALUES ('prt_1ec71f297001oDiWLyjmpOBhFh', 'msg_1ec71f0b6001sYYXPSC8PLr4Kn', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968253114, 1794968253117, '{"type": "text", "text": "Greet."}');
INSERT INTO part VALUES ('prt_1ec721c3f001N8VOVrQvycPBdm', 'msg_1ec720ce9001n0WgzdSbwc6LvT', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968263745, 1794968263759, '{"type": "step-start", "time": {"start": 1794968263325}}');
INSERT INTO part VALUES ('prt_1ec721c6b0017npF0hDQpxEtMr', 'msg_1ec720ce9001n0WgzdSbwc6LvT', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968263788, 1794968263845, '{"type": "reasoning", "text": "They want a greeting.", "time": {"start": 1794968263787, "end": 1794968263830}}');
INSERT INTO part VALUES ('prt_1ec721ca9001Bsr9ABOYDpsoxO', 'msg_1ec720ce9001n0WgzdSbwc6LvT', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968263849, 1794968264001, '{"type": "text", "text": "I will greet.", "time": {"start": 1794968263849, "end": 1794968263986}}');
INSERT INTO part VALUES ('prt_1ec721ce5001p15gDN0bXXDmc0', 'msg_1ec720ce9001n0WgzdSbwc6LvT', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968263909, 1794968265619, '{"type": "tool", "tool": "bash", "callID": "call_0001_0", "state": {"status": "completed", "input": {"command": "echo ahoy", "description": "Greet"}, "output": "ahoy\n", "metadata": {"output": "ahoy\n", "exit": 0, "description": "Greet", "truncated": false, "approval": {"source": "agent", "agent": "code", "rule": {"permission": "bash", "pattern": "echo *", "action": "allow"}}}, "title": "Greet", "time": {"start": 1794968263949, "end": 1794968265387}}}');
INSERT INTO part VALUES ('prt_1ec72241f001oJBEl8gRCVOaTw', 'msg_1ec720ce9001n0WgzdSbwc6LvT', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968265760, 1794968265772, '{"reason": "tool-calls", "type": "step-finish", "time": {"start": 1794968263325, "end": 1794968265747, "elapsed": 2422}, "metrics": {"generation": 8.257638315441783, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec722bea001eCWOsXQSLccMt9', 'msg_1ec7224ab001EX0LRChpYgggQ7', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968267755, 1794968267762, '{"type": "step-start", "time": {"start": 1794968267589}}');
INSERT INTO part VALUES ('prt_1ec722bfa001oOEjSb8PaFBvmb', 'msg_1ec7224ab001EX0LRChpYgggQ7', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968267771, 1794968267795, '{"type": "text", "text": "Done: ahoy", "time": {"start": 1794968267770, "end": 1794968267793}}');
INSERT INTO part VALUES ('prt_1ec722c3b0016xTwprLN7gDnv3', 'msg_1ec7224ab001EX0LRChpYgggQ7', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968267835, 1794968267837, '{"reason": "stop", "type": "step-finish", "time": {"start": 1794968267589, "end": 1794968267830, "elapsed": 241}, "metrics": {"generation": 82.98755186721992, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec722db4001P2x2TmSrxKYSAS', 'msg_1ec722d63001X56kV6adK4yrZN', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968268220, 1794968268228, '{"type": "text", "text": "Delegate."}');
INSERT INTO part VALUES ('prt_1ec723724001WzOjHZDNfJVUfg', 'msg_1ec722f4d001JJfFekYb3U2bJ8', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968270629, 1794968270634, '{"type": "step-start", "time": {"start": 1794968270452}}');
INSERT INTO part VALUES ('prt_1ec7237360015cgUhT3VMKXgCA', 'msg_1ec722f4d001JJfFekYb3U2bJ8', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968270647, 1794968270729, '{"type": "text", "text": "I delegate.", "time": {"start": 1794968270647, "end": 1794968270727}}');
INSERT INTO part VALUES ('prt_1ec723752001gqDYeZYTNs9DrJ', 'msg_1ec722f4d001JJfFekYb3U2bJ8', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968270675, 1794968274208, '{"type": "tool", "tool": "task", "callID": "call_0004_0", "state": {"status": "completed", "input": {"description": "Greet", "prompt": "Greet them.", "subagent_type": "general", "agent_type": "task", "name": "greeter"}, "output": "<task id=\"ses_e138dc8e9ffe1yWfK494O1HXs3\" state=\"completed\">\n<task_result>\nGreeted.\n</task_result>\n</task>", "metadata": {"parentSessionId": "ses_e138e131cffebvgrjEaZcSdsmQ", "sessionId": "ses_e138dc8e9ffe1yWfK494O1HXs3", "model": {"modelID": "m1", "providerID": "local"}, "truncated": false, "approval": {"source": "agent", "agent": "code", "rule": {"permission": "*", "pattern": "*", "action": "allow"}}}, "title": "Greet", "time": {"start": 1794968270695, "end": 1794968274206}}}');
INSERT INTO part VALUES ('prt_1ec72399d001DkFa5o50yq8ty2', 'msg_1ec7238a1001tJNOkJHvcQOjXH', 'ses_e138dc8e9ffe1yWfK494O1HXs3', 1794968271285, 1794968271295, '{"type": "text", "text": "Greet them."}');
INSERT INTO part VALUES ('prt_1ec724217001VQSQSjKAHz5Tsn', 'msg_1ec723ad2001Xoj8V41rzsd1yI', 'ses_e138dc8e9ffe1yWfK494O1HXs3', 1794968273431, 1794968273433, '{"type": "step-start", "time": {"start": 1794968273353}}');
INSERT INTO part VALUES ('prt_1ec72421f001tBN8NMVDo7zFa3', 'msg_1ec723ad2001Xoj8V41rzsd1yI', 'ses_e138dc8e9ffe1yWfK494O1HXs3', 1794968273442, 1794968273453, '{"type": "text", "text": "Greeted.", "time": {"start": 1794968273439, "end": 1794968273451}}');
INSERT INTO part VALUES ('prt_1ec724305001pQPuRIuxsxAEWo', 'msg_1ec723ad2001Xoj8V41rzsd1yI', 'ses_e138dc8e9ffe1yWfK494O1HXs3', 1794968273669, 1794968273678, '{"reason": "stop", "type": "step-finish", "time": {"start": 1794968273353, "end": 1794968273667, "elapsed": 314}, "metrics": {"generation": 63.69426751592356, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec7245ea001Vv9FChhm4W3ipc', 'msg_1ec722f4d001JJfFekYb3U2bJ8', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968274410, 1794968274422, '{"reason": "tool-calls", "type": "step-finish", "time": {"start": 1794968270452, "end": 1794968274402, "elapsed": 3951}, "metrics": {"generation": 5.062009617818274, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec724b56001Y1iKXnXrceg5tb', 'msg_1ec7246d3001ns8BWBd7gjSdpS', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968275799, 1794968275800, '{"type": "step-start", "time": {"start": 1794968275676}}');
INSERT INTO part VALUES ('prt_1ec724b5f001I4MRh9TJBfvWu6', 'msg_1ec7246d3001ns8BWBd7gjSdpS', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968275807, 1794968275830, '{"type": "text", "text": "Done: <task id=\"ses_e138dc", "time": {"start": 1794968275807, "end": 1794968275820}}');
INSERT INTO part VALUES ('prt_1ec724c0c001HiVAKdQoev9S1B', 'msg_1ec7246d3001ns8BWBd7gjSdpS', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968275987, 1794968275989, '{"reason": "stop", "type": "step-finish", "time": {"start": 1794968275676, "end": 1794968275979, "elapsed": 303}, "metrics": {"generation": 66.00660066006601, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec724d94001IdFpYwi2eJFRq6', 'msg_1ec724d88001mHFKu5e85WrWtF', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968276372, 1794968276373, '{"type": "compaction", "auto": false}');
INSERT INTO part VALUES ('prt_1ec7250e700165lrv0tQwyReKX', 'msg_1ec724e770013NsFM2RHdXCoX0', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277223, 1794968277225, '{"type": "step-start", "time": {"start": 1794968277080}}');
INSERT INTO part VALUES ('prt_1ec7250f3001qAmfRFxhUgk5Km', 'msg_1ec724e770013NsFM2RHdXCoX0', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277235, 1794968277245, '{"type": "text", "text": "Greeted.", "time": {"start": 1794968277235, "end": 1794968277244}}');
INSERT INTO part VALUES ('prt_1ec725149001wqNJ0MhEEZfmXS', 'msg_1ec724e770013NsFM2RHdXCoX0', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277321, 1794968277328, '{"reason": "stop", "type": "step-finish", "time": {"start": 1794968277080, "end": 1794968277319, "elapsed": 239}, "metrics": {"generation": 83.68200836820084, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec7252e2001S0BIKzqPTEm3IS', 'msg_1ec72527b001NS2B88gl4H2eDg', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277743, 1794968277750, '{"type": "text", "text": "Once more."}');
INSERT INTO part VALUES ('prt_1ec7253d8001CpcMPe1N7XprY5', 'msg_1ec72527b001NS2B88gl4H2eDg', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968277976, 1794968277982, '{"type": "text", "text": "\n\n<system-reminder>\nThe active agent has changed from compaction to code.\nThis supersedes earlier agent-switch reminders… [240a4e2a6708]", "synthetic": true}');
INSERT INTO part VALUES ('prt_1ec725801001TasEKIsCqKybb8', 'msg_1ec7253e0001m61HRQOXuuJ03e', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968279041, 1794968279043, '{"type": "step-start", "time": {"start": 1794968278878}}');
INSERT INTO part VALUES ('prt_1ec725809001pd2xwJvRc8TeSV', 'msg_1ec7253e0001m61HRQOXuuJ03e', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968279049, 1794968279076, '{"type": "text", "text": "The user greeted; echo printed ahoy.", "time": {"start": 1794968279049, "end": 1794968279074}}');
INSERT INTO part VALUES ('prt_1ec725920001cRHkL1CUo1R10H', 'msg_1ec7253e0001m61HRQOXuuJ03e', 'ses_e138e131cffebvgrjEaZcSdsmQ', 1794968279329, 1794968279331, '{"reason": "stop", "type": "step-finish", "time": {"start": 1794968278878, "end": 1794968279324, "elapsed": 446}, "metrics": {"generation": 44.84304932735426, "source": "computed"}, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
