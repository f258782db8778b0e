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
  name: "BullMQ",
  best: "BullMQ, 100",
  package: "bullmq",
  version: JSON.parse(readFileSync(`${modules}/node_modules/bullmq/package.json`)).version,
  acks: "when a job has ended; a job whose worker dies runs again when its lock (30 s) has ended "
    + "and a check for stalled jobs, every 30 s, finds it",
  delays: "a sorted set, from which they move to the list of waiting jobs",
  by_id: true,
};
const work = (concurrency) => ["node", "benchmarks/peers/bullmq.mjs", String(concurrency)];
const WORKERS = { "BullMQ, 100": { command: work(100), jobs: 10_000 } };
const FAULTS = { command: work(4), settings: "defaults, 4 at once" };

const epoch = () => (performance.timeOrigin + performance.now()) / 1e3;
const now = () => process.hrtime.bigint();
const note = (what, number, at) =>
  appendFileSync(process.env.BENCH_LEDGER, `${what} ${number} ${at ?? now()} ${process.pid}\n`);

// A job that is done marks its time; one that takes seconds writes into the ledger.
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

const queue = process.argv[2] === undefined && new Queue(QUEUE, { connection });
const BATCH = 500, CALLERS = 100;

// Due at a moment, in seconds since the epoch; without one, at once.
function job(number, at) {
  const timestamp = Date.now();
  const opts = at == null ? {} : { timestamp, delay: Math.max(0, Math.ceil(at * 1000) - timestamp) };
  return { name: "job", data: { number }, opts };
}
const add = ({ name, data, opts }) => queue.add(name, data, opts);

async function inTurn(jobs) {
  for (const job of jobs) await add(job);
}
const concurrently = (jobs) => Promise.all(
  Array.from({ length: CALLERS }, (_, c) => inTurn(jobs.filter((_, i) => i % CALLERS === c))));

async function inBatches(jobs) {
  for (let i = 0; i < jobs.length; i += BATCH) await queue.addBulk(jobs.slice(i, i + BATCH));
}
const WAYS = { awaited: inTurn, concurrent: concurrently, many: inBatches };

// What the producer does; benchmarks/peers/common.py says what each is.
const DO = {
  async put({ first, count, at, step, bulk }) {
    const began = now();
    const jobs = Array.from({ length: count }, (_, i) => job(first + i, at == null ? at : at + i * step));
    await (bulk ? inBatches : inTurn)(jobs);
    return Number(began);
  },
  async stream({ first, count, rate, delay, start }) {
    const between = Number(now()) / 1e9 - epoch();
    const due = [];
    let moment = start;
    for (let i = 0; i < count; i++) {
      moment -= Math.log(1 - Math.random()) / rate;
      const early = moment - epoch();
      if (early > 0) await new Promise((resolve) => setTimeout(resolve, early * 1e3));
      const at = epoch() + delay;
      due.push(Math.round((at + between) * 1e9));
      await add(job(first + i, at));
    }
    return due;
  },
  async time({ way, count, delay }) {
    if (WAYS[way] === undefined) return null;
    const at = delay ? epoch() + delay : undefined;
    const jobs = Array.from({ length: count }, (_, n) => job(n, at));
    await WAYS[way](jobs.slice(0, CALLERS)); // connects
    const cpu = process.cpuUsage(), start = now();
    await WAYS[way](jobs);
    const seconds = Number(now() - start) / 1e9, { user, system } = process.cpuUsage(cpu);
    return { seconds, cpu_s: (user + system) / 1e6 };
  },
  async hold({ first, count, seconds, delay, step }) {
    const start = now();
    const jobs = Array.from({ length: count }, (_, i) => {
      const number = first + i, later = delay + i * step;
      note("due", number, start + BigInt(Math.round(later * 1e9)));
      return { name: "held", data: { number, seconds }, opts: { delay: Math.round(later * 1000) } };
    });
    await queue.addBulk(jobs);
    return count;
  },
};

async function produce() {
  console.log(JSON.stringify({ ...ABOUT, workers: { ...WORKERS, faults: FAULTS } }));
  for await (const line of createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    console.log(JSON.stringify(await DO[order.do](order)));
  }
  process.exit(0);
}

if (process.argv[2] === undefined) await produce();
else serve(Number(process.argv[2]));
