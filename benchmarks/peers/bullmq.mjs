// npm: bullmq@^6.7 ioredis@^5
// BullMQ: an event loop; workers wait for a marker, and look for stalled jobs every half minute.

import { createRequire } from "node:module";
import { appendFileSync, openSync, readFileSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

const modules = process.env.BENCH_MODULES;
const require = createRequire(`${modules}/`);
const { Queue, Worker } = require("bullmq");
const QUEUE = "bench";
const url = new URL(process.env.BENCH_URL);
const connection = url.protocol === "unix:"
  ? { path: decodeURIComponent(url.pathname), maxRetriesPerRequest: null }
  : { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

const ABOUT = {
  package: "bullmq",
  version: JSON.parse(readFileSync(`${modules}/node_modules/bullmq/package.json`)).version,
  acks: "when a job has ended; one whose worker dies runs again when its lock (30 s) has ended "
    + "and a check for stalled jobs, every 30 s, finds it",
  delays: "a sorted set, from which they go to the list of those that wait",
};
const work = (concurrency) => ["node", "benchmarks/peers/bullmq.mjs", String(concurrency)];
const WORKERS = { "BullMQ, 100": { command: work(100), jobs: 10_000 } };
const FAULTS = { command: work(4), settings: "defaults, 4 at once" };

const now = () => process.hrtime.bigint();
const note = (what, number, at) =>
  appendFileSync(process.env.BENCH_LEDGER, `${what} ${number} ${at ?? now()} ${process.pid}\n`);

function serve(concurrency) {
  const marks = openSync(process.env.BENCH_MARKS, "r+");
  const bytes = Buffer.alloc(8);
  const worker = new Worker(QUEUE, async (job) => {
    const { number, seconds } = job.data;
    if (seconds === undefined) {
      bytes.writeBigInt64LE(now());
      writeSync(marks, bytes, 0, 8, 8 * number);
      return;
    }
    note("begin", number);
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    note("end", number);
  }, { connection, concurrency });
  worker.on("error", (error) => console.error(error.message));
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

async function produce() {
  const queue = new Queue(QUEUE, { connection });
  console.log(JSON.stringify({ ...ABOUT, workers: { ...WORKERS, faults: FAULTS } }));
  for await (const line of createInterface({ input: process.stdin })) {
    const [worker, first, count, seconds, delay, step] = JSON.parse(line);
    const numbers = Array.from({ length: count }, (_, i) => first + i);
    if (worker === null) {
      const start = now();
      const jobs = numbers.map((number, i) => {
        const later = delay + i * step;
        note("due", number, start + BigInt(Math.round(later * 1e9)));
        return { name: "held", data: { number, seconds }, opts: { delay: Math.round(later * 1000) } };
      });
      await queue.addBulk(jobs);
    } else {
      for (let i = 0; i < count; i += 500) {
        await queue.addBulk(
          numbers.slice(i, i + 500).map((number) => ({ name: "job", data: { number } })));
      }
    }
    console.log(JSON.stringify(count));
  }
  process.exit(0);
}

if (process.argv[2] === undefined) await produce();
else serve(Number(process.argv[2]));
