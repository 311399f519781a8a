// Open-loop load of `gateway_open_loop.py`: turns start at a constant rate, however long the earlier ones take.
import http from "k6/http";

export const options = {
  discardResponseBodies: false,
  summaryTrendStats: ["med", "p(99)"],
  scenarios: {
    turns: {
      executor: "constant-arrival-rate",
      rate: Math.max(1, Math.round(__ENV.RATE * 10)),
      timeUnit: "10s",
      duration: `${__ENV.SECONDS}s`,
      preAllocatedVUs: 32,
      maxVUs: 256,
    },
  },
};

const url = `http://127.0.0.1:${__ENV.PORT}/v1/chat/completions`;
let conversation = "";
let messages = [];

/** One turn with the whole list; each virtual user starts another conversation after some turns. */
export default function () {
  if (messages.length === 0 || messages.length > 2 * __ENV.TURNS) {
    conversation = `${__ENV.RUN}-${__VU}-${__ITER}`;
    messages = [{ role: "system", content: __ENV.SYSTEM_PROMPT }];
  }
  const question = { role: "user", content: `${__VU} ${__ITER} ${__ENV.QUESTION}` };
  const body = JSON.stringify({ model: "gpt-4o", messages: [...messages, question] });
  const headers = {
    Authorization: `Bearer ${__ENV.KEY}`,
    "Content-Type": "application/json",
    "X-Quire-Conversation": conversation,
  };
  const response = http.post(url, body, { headers });
  if (response.status === 200) messages.push(question, { role: "assistant", content: response.json("choices.0.message.content") });
}

export function handleSummary({ metrics }) {
  const { med, "p(99)": p99 } = metrics.http_req_duration.values;
  return {
    stdout: JSON.stringify({
      turns: metrics.http_reqs.values.count,
      p50_ms: med,
      p99_ms: p99,
      failed: metrics.http_req_failed.values.passes,
      dropped: metrics.dropped_iterations ? metrics.dropped_iterations.values.count : 0,
    }),
  };
}
