// Choosing a range on the timeline: by dragging, or with the arrow keys.

import { moment } from "./times.js";

const STEP = 10;
const form = document.getElementById("choose");
const choice = document.getElementById("choice");
const said = document.getElementById("said");
const chosen = { from: null, to: null }; // microseconds; they stay while the picture moves on
let anchor = null;
let cursor = null;
let dragged = false;

const chart = () => document.getElementById("chart");
const geometry = () => {
  const svg = chart();
  return { svg, start: Number(svg.dataset.from), step: Number(svg.dataset.step), count: svg.viewBox.baseVal.width / STEP };
};

function place(event) {
  const { svg, count } = geometry();
  const box = svg.getBoundingClientRect();
  return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
}

function choose(one, other) {
  const { start, step } = geometry();
  chosen.from = start + Math.min(one, other) * step;
  chosen.to = start + (Math.max(one, other) + 1) * step;
  draw();
}

function draw() {
  const svg = chart();
  if (!svg || chosen.from === null) return;
  const { start, step } = geometry();
  const mark = document.getElementById("chosen");
  const x = ((chosen.from - start) / step) * STEP;
  mark.setAttribute("x", x);
  mark.setAttribute("width", ((chosen.to - chosen.from) / step) * STEP);
  let due = 0;
  for (const bar of svg.querySelectorAll("a[data-due]")) {
    const at = start + (Number(bar.dataset.x) / STEP) * step;
    if (at >= chosen.from && at < chosen.to) due += Number(bar.dataset.due);
  }
  const text = `${due.toLocaleString()} ${due === 1 ? "job" : "jobs"} due from ${moment(chosen.from)} until ${moment(chosen.to)}`;
  choice.textContent = text;
  if (said.textContent !== text) said.textContent = text; // or it would be read out at each refresh
  form.classList.add("is-made");
  document.getElementById("from").value = new Date(chosen.from / 1000).toISOString();
  document.getElementById("to").value = new Date(chosen.to / 1000).toISOString();
}

function clear() {
  chosen.from = chosen.to = anchor = cursor = null;
  document.getElementById("chosen")?.setAttribute("width", 0);
  document.getElementById("from").value = document.getElementById("to").value = "";
  form.classList.remove("is-made");
  choice.textContent = "Drag over the timeline, or press an arrow key on it, to choose a range.";
}

document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest?.("#chart") || event.button) return;
  anchor = place(event);
  dragged = false;
  cursor = null;
});
document.addEventListener("pointermove", (event) => {
  if (anchor === null || !event.buttons) return;
  const here = place(event);
  if (here !== anchor) dragged = true;
  if (dragged) { choose(anchor, here); event.preventDefault(); }
});
document.addEventListener("pointerup", () => { anchor = null; });
document.addEventListener("dragstart", (event) => { if (event.target.closest?.("#chart")) event.preventDefault(); });
document.addEventListener("click", (event) => {
  if (!event.target.closest?.("#chart")) return;
  if (dragged) { event.preventDefault(); dragged = false; return; } // that was a range, not a press
  if (!event.target.closest("a")) { const here = place(event); choose(here, here); }
}, true);

document.addEventListener("keydown", (event) => {
  if (document.activeElement?.id !== "chart") return;
  const { count } = geometry();
  const move = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[event.key];
  if (move) {
    event.preventDefault();
    const before = cursor;
    cursor = before === null ? 20 : Math.max(0, Math.min(count - 1, before + move));
    if (!event.shiftKey || anchorKey === null) anchorKey = cursor;
    choose(anchorKey, cursor);
  } else if (event.key === "Enter" && chosen.from !== null) form.requestSubmit();
  else if (event.key === "Escape") { anchorKey = null; clear(); }
});
let anchorKey = null;

document.addEventListener("page:refreshed", draw);
