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
INSERT INTO session VALUES ('ses_e138ecdacfferNqSn7uW5XIkrd', 'global', NULL, NULL, 'gentle-garden', '/home/user/project', 'home/user/project', 'Ahoy.', '1.18.33', NULL, 0, 0, 0, NULL, NULL, 0.0057, 5400, 120, 0, 600, 0, NULL, NULL, 'build', '{"id": "m1", "providerID": "local", "variant": "default"}', 1794968203860, 1794968222794, NULL, NULL);
INSERT INTO session VALUES ('ses_e138e8eb6ffeHMCtAwfcI7IGEO', 'global', NULL, 'ses_e138ecdacfferNqSn7uW5XIkrd', 'silent-star', '/home/user/project', 'home/user/project', 'Greet (@general subagent)', '1.18.33', NULL, 0, 0, 0, NULL, NULL, 0.00095, 900, 20, 0, 100, 0, NULL, '[{"permission": "task", "pattern": "*", "action": "deny"}]', 'general', '{"id": "m1", "providerID": "local", "variant": "default"}', 1794968219977, 1794968220901, NULL, NULL);
CREATE TABLE `message` (
          `id` text PRIMARY KEY,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL
);
INSERT INTO message VALUES ('msg_1ec713a07001orBJyRhqoI97x9', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968205831, 1794968219104, '{"role": "user", "time": {"created": 1794968205831}, "agent": "build", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec714bda001vUscsuWVJ6Z3Y2', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968210394, 1794968218111, '{"parentID": "msg_1ec713a07001orBJyRhqoI97x9", "role": "assistant", "mode": "build", "agent": "build", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968210394, "completed": 1794968217842}, "finish": "tool-calls"}');
INSERT INTO message VALUES ('msg_1ec716a18001nEjzx5UbPuFjwa', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968218136, 1794968218985, '{"parentID": "msg_1ec713a07001orBJyRhqoI97x9", "role": "assistant", "mode": "build", "agent": "build", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968218136, "completed": 1794968218983}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec716e11001MFWCV0tYC6N4Bl', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968219153, 1794968221449, '{"role": "user", "time": {"created": 1794968219153}, "agent": "build", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec716eea001m6DlXuSHlHhWVD', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968219370, 1794968220836, '{"parentID": "msg_1ec716e11001MFWCV0tYC6N4Bl", "role": "assistant", "mode": "build", "agent": "build", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968219370, "completed": 1794968220835}, "finish": "tool-calls"}');
INSERT INTO message VALUES ('msg_1ec7171a100193YLFB2xBQH8I5', 'ses_e138e8eb6ffeHMCtAwfcI7IGEO', 1794968220075, 1794968220925, '{"role": "user", "time": {"created": 1794968220075}, "agent": "general", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec717236001fFHaN6RY4PVtDk', 'ses_e138e8eb6ffeHMCtAwfcI7IGEO', 1794968220214, 1794968220739, '{"parentID": "msg_1ec7171a100193YLFB2xBQH8I5", "role": "assistant", "mode": "general", "agent": "general", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968220214, "completed": 1794968220729}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec7174af001mJARwp61dNFWpl', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968220847, 1794968221361, '{"parentID": "msg_1ec716e11001MFWCV0tYC6N4Bl", "role": "assistant", "mode": "build", "agent": "build", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968220847, "completed": 1794968221360}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec717731001zgiEzamc4bcCn8', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221490, 1794968221914, '{"role": "user", "model": {"providerID": "local", "modelID": "m1"}, "agent": "build", "time": {"created": 1794968221490}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec7177cb00149evaDMCbyrTts', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221644, 1794968221848, '{"role": "assistant", "parentID": "msg_1ec717731001zgiEzamc4bcCn8", "mode": "compaction", "agent": "compaction", "summary": true, "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968221644, "completed": 1794968221846}, "finish": "stop"}');
INSERT INTO message VALUES ('msg_1ec71794100102UQd0joKC1BGt', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968222018, 1794968222825, '{"role": "user", "time": {"created": 1794968222018}, "agent": "build", "model": {"providerID": "local", "modelID": "m1"}, "summary": {"diffs": []}}');
INSERT INTO message VALUES ('msg_1ec7179e4001U1GLQIZZ8g7Yvv', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968222180, 1794968222752, '{"parentID": "msg_1ec71794100102UQd0joKC1BGt", "role": "assistant", "mode": "build", "agent": "build", "path": {"cwd": "/home/user/project", "root": "/"}, "cost": 0.00095, "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "modelID": "m1", "providerID": "local", "time": {"created": 1794968222180, "completed": 1794968222751}, "finish": "stop"}');
CREATE TABLE `part` (
          `id` text PRIMARY KEY,
          `message_id` text NOT NULL,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL
);
INSERT INTO part VALUES ('prt_1ec713aab001fbXQ11BkjBpENp', 'msg_1ec713a07001orBJyRhqoI97x9', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968210242, 1794968210259, '{"type": "text", "text": "Greet."}');
INSERT INTO part VALUES ('prt_1ec71627d0014AGwYcQnsEmmlu', 'msg_1ec714bda001vUscsuWVJ6Z3Y2', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968216189, 1794968216208, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec7162af001aLpPtbC5bvn3dp', 'msg_1ec714bda001vUscsuWVJ6Z3Y2', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968216239, 1794968216319, '{"type": "reasoning", "text": "They want a greeting.", "time": {"start": 1794968216239, "end": 1794968216293}}');
INSERT INTO part VALUES ('prt_1ec716307001yr3yXdR2xQ8syV', 'msg_1ec714bda001vUscsuWVJ6Z3Y2', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968216327, 1794968216475, '{"type": "text", "text": "I will greet.", "time": {"start": 1794968216327, "end": 1794968216470}}');
INSERT INTO part VALUES ('prt_1ec71632e001Pd08bYLaGur9Z4', 'msg_1ec714bda001vUscsuWVJ6Z3Y2', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968216367, 1794968217536, '{"type": "tool", "tool": "bash", "callID": "call_0002_0", "state": {"status": "completed", "input": {"command": "echo ahoy", "description": "Greet"}, "output": "ahoy\n", "metadata": {"output": "ahoy\n", "exit": 0, "truncated": false}, "title": "echo ahoy", "time": {"start": 1794968216429, "end": 1794968217510}}}');
INSERT INTO part VALUES ('prt_1ec71683e001h0zNa2OFqZdhPD', 'msg_1ec714bda001vUscsuWVJ6Z3Y2', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968217663, 1794968217698, '{"reason": "tool-calls", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec716cca001ca6T6VG5y4TRoa', 'msg_1ec716a18001nEjzx5UbPuFjwa', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968218827, 1794968218829, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec716ceb001pvs1U0CJ7EKR1a', 'msg_1ec716a18001nEjzx5UbPuFjwa', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968218860, 1794968218908, '{"type": "text", "text": "Done: ahoy", "time": {"start": 1794968218859, "end": 1794968218889}}');
INSERT INTO part VALUES ('prt_1ec716d30001G5pUneekTesSSI', 'msg_1ec716a18001nEjzx5UbPuFjwa', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968218928, 1794968218945, '{"reason": "stop", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec716e1f001gpByDuU27JJo5x', 'msg_1ec716e11001MFWCV0tYC6N4Bl', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968219183, 1794968219185, '{"type": "text", "text": "Delegate."}');
INSERT INTO part VALUES ('prt_1ec7170e1001Lfflirmame0lxt', 'msg_1ec716eea001m6DlXuSHlHhWVD', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968219873, 1794968219879, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec7170f3001v3HES1yxznpKFm', 'msg_1ec716eea001m6DlXuSHlHhWVD', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968219891, 1794968220190, '{"type": "text", "text": "I delegate.", "time": {"start": 1794968219891, "end": 1794968220180}}');
INSERT INTO part VALUES ('prt_1ec7171140015Pl5315czSpGLD', 'msg_1ec716eea001m6DlXuSHlHhWVD', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968219925, 1794968220802, '{"type": "tool", "tool": "task", "callID": "call_0004_0", "state": {"status": "completed", "input": {"description": "Greet", "prompt": "Greet them.", "subagent_type": "general", "agent_type": "task", "name": "greeter"}, "output": "<task id=\"ses_e138e8eb6ffeHMCtAwfcI7IGEO\" state=\"completed\">\n<task_result>\nGreeted.\n</task_result>\n</task>", "metadata": {"parentSessionId": "ses_e138ecdacfferNqSn7uW5XIkrd", "sessionId": "ses_e138e8eb6ffeHMCtAwfcI7IGEO", "model": {"modelID": "m1", "providerID": "local"}, "truncated": false}, "title": "Greet", "time": {"start": 1794968220023, "end": 1794968220784}}}');
INSERT INTO part VALUES ('prt_1ec7171c7001akVTiaeiJb5YMT', 'msg_1ec7171a100193YLFB2xBQH8I5', 'ses_e138e8eb6ffeHMCtAwfcI7IGEO', 1794968220115, 1794968220116, '{"type": "text", "text": "Greet them."}');
INSERT INTO part VALUES ('prt_1ec7173df001XRgsn825OWmerQ', 'msg_1ec717236001fFHaN6RY4PVtDk', 'ses_e138e8eb6ffeHMCtAwfcI7IGEO', 1794968220640, 1794968220641, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec7173f4001ZbQu578t8bY8u4', 'msg_1ec717236001fFHaN6RY4PVtDk', 'ses_e138e8eb6ffeHMCtAwfcI7IGEO', 1794968220660, 1794968220678, '{"type": "text", "text": "Greeted.", "time": {"start": 1794968220660, "end": 1794968220677}}');
INSERT INTO part VALUES ('prt_1ec717409001qDO8HRTF6OAi1s', 'msg_1ec717236001fFHaN6RY4PVtDk', 'ses_e138e8eb6ffeHMCtAwfcI7IGEO', 1794968220681, 1794968220697, '{"reason": "stop", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec717484001esGMRCg2TLlapI', 'msg_1ec716eea001m6DlXuSHlHhWVD', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968220805, 1794968220814, '{"reason": "tool-calls", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec717640001HHHBtKpsZ4hzKz', 'msg_1ec7174af001mJARwp61dNFWpl', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221248, 1794968221265, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec717657001nuSEObJoVGoQDk', 'msg_1ec7174af001mJARwp61dNFWpl', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221272, 1794968221311, '{"type": "text", "text": "Done: <task id=\"ses_e138e8", "time": {"start": 1794968221271, "end": 1794968221296}}');
INSERT INTO part VALUES ('prt_1ec71768c001kG71LMeG8o9qOp', 'msg_1ec7174af001mJARwp61dNFWpl', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221324, 1794968221326, '{"reason": "stop", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec7177440014JjFw7bEv0lcS8', 'msg_1ec717731001zgiEzamc4bcCn8', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221508, 1794968221510, '{"type": "compaction", "auto": false}');
INSERT INTO part VALUES ('prt_1ec71784b001XU4Yq5wM6PLGLu', 'msg_1ec7177cb00149evaDMCbyrTts', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221771, 1794968221772, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec71785a001LDwEvXnf68l6rp', 'msg_1ec7177cb00149evaDMCbyrTts', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221787, 1794968221807, '{"type": "text", "text": "Greeted.", "time": {"start": 1794968221787, "end": 1794968221801}}');
INSERT INTO part VALUES ('prt_1ec7178780013KOeB9Pra9Wauk', 'msg_1ec7177cb00149evaDMCbyrTts', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968221816, 1794968221823, '{"reason": "stop", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
INSERT INTO part VALUES ('prt_1ec71794a001vQ9zpcOZgbH6GO', 'msg_1ec71794100102UQd0joKC1BGt', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968222035, 1794968222036, '{"type": "text", "text": "Once more."}');
INSERT INTO part VALUES ('prt_1ec717bc5001qxsywC4ka0L0Mb', 'msg_1ec7179e4001U1GLQIZZ8g7Yvv', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968222664, 1794968222669, '{"type": "step-start"}');
INSERT INTO part VALUES ('prt_1ec717bd3001ctTBQaNZ2p6vjv', 'msg_1ec7179e4001U1GLQIZZ8g7Yvv', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968222678, 1794968222703, '{"type": "text", "text": "Noted.", "time": {"start": 1794968222677, "end": 1794968222689}}');
INSERT INTO part VALUES ('prt_1ec717bf8001eaonM1KrhsU16b', 'msg_1ec7179e4001U1GLQIZZ8g7Yvv', 'ses_e138ecdacfferNqSn7uW5XIkrd', 1794968222712, 1794968222713, '{"reason": "stop", "type": "step-finish", "tokens": {"total": 1020, "input": 900, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 100}}, "cost": 0.00095}');
