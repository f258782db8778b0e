// Enqueues a job from Node, without a package: `node enqueue.mjs TASK [ARGUMENT]...`
//
// The script it calls stands beside it, as bide printed it once, and belongs into your repository:
//
//     bide script enqueue --json -q mail > enqueue.json
//
// With a client library, `call` is its `client.sendCommand([...])` or `client.call(...)`.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";

const script = JSON.parse(readFileSync("enqueue.json", "utf8"));

// Any text that no other job has; jobs due at one microsecond run in the order of their ids.
const newId = () => `${Date.now().toString(36)}-${randomBytes(8).toString("hex")}`;

async function enqueue(call, task, args, { id = newId(), when = "+0", priority = 5, ...rest } = {}) {
  const body = JSON.stringify({ task, args, ...rest }); // rest: timeout, retry, meta, …
  const told = [script.keys.length, ...script.keys, id, when, priority, body];
  const reply = await call("EVALSHA", script.sha, ...told).catch((error) => {
    if (!error.message.startsWith("NOSCRIPT")) throw error;
    return call("EVAL", script.text, ...told); // from now on the server knows it
  });
  const isNew = reply[2] > 0; // else there was a job of this id, which is left as it is
  return { id, isNew, due: isNew ? new Date(reply[2] / 1000) : null };
}

// The rest is a client for the one command: RESP over a socket, a call at a time.
function open(url) {
  const { protocol, pathname, hostname, port } = new URL(url);
  const socket = connect(protocol === "unix:" ? pathname : { host: hostname, port: port || 6379 });
  const call = (...words) => new Promise((resolve, reject) => {
    const parts = words.map((word) => Buffer.from(String(word)));
    const sent = parts.flatMap((part) => [`$${part.length}\r\n`, part, "\r\n"]);
    let got = "";
    socket.removeAllListeners().on("error", reject).on("data", (data) => {
      const lines = (got += data).split("\r\n"); // what is answered here is ASCII
      const next = () => {
        if (lines.length < 2) throw new RangeError("there is more to come");
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
