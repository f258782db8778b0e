// Enqueues a job from Node, without a package: `node enqueue.mjs TASK [ARGUMENT]...`
//
// The script that it calls is in a file that bide has printed once. Keep the file in your repository:
//
//     bide script enqueue --json -q mail > enqueue.json
//
// With a client library, `call` is its `client.sendCommand([...])` or `client.call(...)`.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";

const script = JSON.parse(readFileSync("enqueue.json", "utf8"));

// A text that no other job has. Jobs due at the same microsecond run in the order of their ids.
const newId = () => `${Date.now().toString(36)}-${randomBytes(8).toString("hex")}`;

async function enqueue(call, task, args, { id = newId(), when = "+0", priority = 5, ...rest } = {}) {
  const body = JSON.stringify({ task, args, ...rest }); // rest: timeout, retry, meta, …
  const words = [script.keys.length, ...script.keys, id, when, priority, body];
  const reply = await call("EVALSHA", script.sha, ...words).catch((error) => {
    if (!error.message.startsWith("NOSCRIPT")) throw error;
    return call("EVAL", script.text, ...words); // after this, the server knows it
  });
  const isNew = reply[2] > 0; // otherwise a job had this id, and is unchanged
  return { id, isNew, due: isNew ? new Date(reply[2] / 1000) : null };
}

// The rest is a client for one call at a time: RESP over a socket, without AUTH and SELECT.
function open(url) {
  const { protocol, pathname, hostname, port } = new URL(url);
  const socket = connect(protocol === "unix:" ? pathname : { host: hostname, port: port || 6379 });
  const call = (...words) => new Promise((resolve, reject) => {
    const parts = words.map((word) => Buffer.from(String(word)));
    const sent = parts.flatMap((part) => [`$${part.length}\r\n`, part, "\r\n"]);
    let got = "";
    socket.removeAllListeners().on("error", reject).on("data", (data) => {
      const lines = (got += data).split("\r\n"); // these replies are ASCII
      const next = () => {
        if (lines.length < 2) throw new RangeError("the reply is incomplete");
        return lines.shift();
      };
      const read = () => {
        const line = next();
        if (line[0] === "-") throw new Error(line.slice(1));
        if (line[0] === "$") return next();
        return line[0] === "*" ? Array.from({ length: +line.slice(1) }, read) : +line.slice(1);
      };
      try { resolve(read()); } catch (error) { if (!(error instanceof RangeError)) reject(error); }
    });
    socket.write(Buffer.concat([`*${parts.length}\r\n`, ...sent].map((part) => Buffer.from(part))));
  });
  return { call, close: () => socket.end() };
}

const { call, close } = open(process.env.BIDE_URL ?? "redis://127.0.0.1:6379");
const [task, ...args] = process.argv.slice(2);
try { console.log(JSON.stringify(await enqueue(call, task, args))); } finally { close(); }
