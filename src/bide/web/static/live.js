// Keeps a page live: the server says that something has changed, the page is asked for again, and
// the parts that differ are exchanged. Without this script every page can still be read.

import { describe } from "./times.js";

const html = document.documentElement;
const pulse = document.getElementById("pulse");
const held = { by: false }; // whoever reads holds the page still
let stale = false;
let busy = false;
let last = 0;
const LEAST = 900; // milliseconds between two looks

export function refreshed(root) {
  describe(root);
  document.dispatchEvent(new CustomEvent("page:refreshed"));
}

function show(state, text, title) {
  if (!pulse) return;
  pulse.dataset.is = state;
  pulse.querySelector("b").textContent = text;
  pulse.title = title;
}

// Whoever stands in a field, or has marked text, is not to lose it.
function inUse(part) {
  const chosen = document.getSelection();
  if (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode)) return true;
  const active = document.activeElement;
  return part.contains(active) && active.matches("input, select, textarea, button, summary, pre, ol");
}

function exchange(part, fresh) {
  const open = [...part.querySelectorAll("details")].map((each) => each.open);
  const active = document.activeElement;
  const focused = part.contains(active) ? [...part.querySelectorAll("a, [tabindex]")].indexOf(active) : -1;
  const node = document.importNode(fresh, true);
  node.querySelectorAll("details").forEach((each, i) => { if (i < open.length) each.open = open[i]; });
  if (part.matches("details")) node.open = part.open;
  describe(node);
  part.replaceWith(node);
  if (focused >= 0) node.querySelectorAll("a, [tabindex]")[focused]?.focus({ preventScroll: true });
}

async function refresh() {
  if (held.by || document.hidden || busy) { stale = true; return; }
  const wait = last + LEAST - performance.now();
  if (wait > 0) { if (!stale) { stale = true; setTimeout(again, wait); } return; }
  busy = true;
  stale = false;
  last = performance.now();
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (!response.ok) throw new Error(response.status);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (fresh && !inUse(part)) exchange(part, fresh);
    }
    document.dispatchEvent(new CustomEvent("page:refreshed"));
  } catch (error) {
    show("lost", "lost", "The page could not be read again; it is tried on");
  } finally {
    busy = false;
  }
}

function again() { if (stale) { stale = false; refresh(); } }

function listen() {
  const source = new EventSource(html.dataset.live);
  source.addEventListener("open", () => show("live", "live", "Live; press to hold the page still"));
  source.addEventListener("change", () => { show("live", "live", "Live; press to hold the page still"); refresh(); });
  source.addEventListener("trouble", (event) => show("lost", "lost", JSON.parse(event.data)));
  source.addEventListener("error", () => show("lost", "lost", "The connection broke; it is made again"));
  return source;
}

describe(document);
// On a phone the pages' names do not all fit: the one that is shown stands in view.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

const parts = document.querySelectorAll("[data-part]");
if (pulse && html.dataset.live && parts.length) {
  pulse.hidden = false;
  show("wait", "…", "Connecting");
  let source = listen();
  pulse.addEventListener("click", () => {
    held.by = !held.by;
    pulse.setAttribute("aria-pressed", String(!held.by));
    if (held.by) { source.close(); show("held", "held", "Held still; press to go on"); }
    else { source = listen(); refresh(); }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
  const every = Math.min(...[...parts].map((part) => Number(part.dataset.every) || Infinity));
  if (every < Infinity) setInterval(refresh, every * 1000);
}
