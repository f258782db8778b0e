// Keeps a page live: the server says that something has changed, the page is asked for again, and
// the parts that differ are exchanged. Without this script every page can still be read.

import { describe, follow } from "./times.js";

const html = document.documentElement;
const pulse = document.getElementById("pulse");
const parts = document.querySelectorAll("[data-part]");
const LIVE = "Live; press to pause updates";
const FOCUSED = "a, button, summary, [tabindex]"; // elements that may have the focus while a part is exchanged
const VERB = "button[name=verb]"; // a button that changes something
const SETTLED = 1000; // milliseconds after which a button that took another's place may be pressed
const [reading, calling] = [patience(), patience()];
let held = false; // the user holds the page still
let wanted = false; // something has changed that is not shown
let busy = false;
let timer = 0;
let since = 0; // when the server had seen what it told of last
let left = false; // a part was in use, and has not been exchanged
let [ticking, rhythm] = [0, Infinity];
let next = performance.now() + pace(html); // when the page may be read again
let line = null;
let redial = 0;

// Milliseconds until a failed request is retried: longer each time.
function patience() {
  let pause = 2000;
  return {
    next() { pause = Math.min(pause * 2, 60_000); return pause / 2; },
    reset() { pause = 2000; },
  };
}

// A dear page says that it is to be read less often.
function pace(root) { return Number(root.dataset.least) * 1000; }

function show(state, text, title) {
  pulse.hidden = false;
  pulse.dataset.is = state;
  pulse.querySelector("b").textContent = text;
  pulse.title = title;
}

// Whether the user has selected text in a part: an exchange would lose the selection.
function marked(part) {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
}

// A field that has another value than the page gave it.
function filled(field) {
  if (field.matches("select")) return [...field.options].some((each) => each.selected !== each.defaultSelected);
  return field.value !== field.defaultValue || field.checked !== field.defaultChecked;
}

function inUse(part) {
  if (marked(part) || [...part.querySelectorAll("input:not([type=hidden]), select, textarea")].some(filled)) return true;
  const active = document.activeElement;
  return part.contains(active) && active.matches("input, select, textarea, pre, ol");
}

// A part that comes or goes, such as that of the first log line, needs the whole page again.
function hasOtherParts(page) {
  const ids = (root) => [...root.querySelectorAll("[data-part]")].map((part) => part.id).join();
  return ids(page) !== ids(document);
}

function mayReload() {
  return !marked(document.body) && !document.activeElement.matches("input, select, textarea");
}

// A part that is in use keeps its fields; what it offers no more cannot be pressed.
function offer(part, fresh) {
  for (const each of part.querySelectorAll(VERB)) {
    each.disabled = ![...fresh.querySelectorAll(VERB)].some((other) => other.value === each.value);
  }
}

function forms(part) { return [...part.querySelectorAll("form")].map((form) => form.outerHTML).join(); }

function exchange(part, fresh) {
  const open = [...part.querySelectorAll("details")].map((each) => each.open);
  const active = document.activeElement;
  const focused = part.contains(active) ? [...part.querySelectorAll(FOCUSED)].indexOf(active) : -1;
  const isNear = focused >= 0 || part.matches(":hover");
  const isOther = forms(part) !== forms(fresh);
  const node = document.importNode(fresh, true);
  node.querySelectorAll("details").forEach((each, i) => { if (i < open.length) each.open = open[i]; });
  if (part.matches("details")) node.open = part.open;
  describe(node);
  part.replaceWith(node);
  // A user who is about to press a button must not press the button that has taken its place.
  const focus = () => {
    const all = [...node.querySelectorAll(FOCUSED)];
    const to = active.form ? all.find((each) => each.form?.isEqualNode(active.form)) : all[focused];
    if (focused >= 0 && document.activeElement === document.body) to?.focus({ preventScroll: true });
  };
  if (isNear && isOther) {
    node.inert = true;
    setTimeout(() => { node.inert = false; focus(); }, SETTLED);
  } else focus();
}

// A part says how often it is to be read; one that has come may say another.
function tick() {
  const every = Math.min(...[...document.querySelectorAll("[data-part]")].map((part) => Number(part.dataset.every) || Infinity));
  if (every === rhythm) return;
  clearInterval(ticking);
  rhythm = every;
  if (every < Infinity) ticking = setInterval(refresh, every * 1000);
}

async function read() {
  busy = true;
  wanted = false;
  let rest;
  try {
    const headers = { accept: "text/html", "x-bide-refresh": "1" };
    const response = await fetch(location.href, { headers, cache: "no-store" });
    if (response.status === 404) offer(document, new DocumentFragment());
    if (!response.ok) throw new Error(response.status);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    rest = pace(page.documentElement);
    reading.reset();
    if (Number(page.documentElement.dataset.seen) < since) wanted = true; // another's, read before that
    follow(page.documentElement);
    if (hasOtherParts(page) && mayReload()) {
      location.reload();
      return;
    }
    if (!html.dataset.live) pulse.hidden = true; // the last read may have failed
    left = false;
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh || part.isEqualNode(fresh)) continue;
      if (inUse(part)) {
        left = true;
        offer(part, fresh);
      } else exchange(part, fresh);
    }
    tick();
    document.dispatchEvent(new CustomEvent("page:refreshed"));
  } catch (error) {
    wanted = true;
    rest = reading.next();
    if (error.message === "404") show("lost", "gone", "Removed: the page shows its last state");
    else show("lost", "lost", "The page could not be reloaded; it will try again");
  } finally {
    busy = false;
    next = performance.now() + rest;
    look();
  }
}

// Whatever is wanted is read in the end: at once, or by what keeps it from being read now.
function look() {
  clearTimeout(timer);
  if (!wanted || busy || held || document.hidden) return;
  const wait = next - performance.now();
  if (wait > 0) timer = setTimeout(look, wait);
  else read();
}

function refresh() { wanted = true; look(); }

// One line for each page that is seen: browsers have six to a site, where HTTP/1 is spoken.
function listen() {
  hangUp();
  if (!html.dataset.live || held || document.hidden) return; // as a view of Django there is no stream
  line = new EventSource(html.dataset.live);
  line.addEventListener("open", () => { calling.reset(); show("live", "live", LIVE); });
  line.addEventListener("change", (event) => { since = Number(event.data); show("live", "live", LIVE); refresh(); });
  line.addEventListener("failure", (event) => show("lost", "lost", JSON.parse(event.data)));
  line.addEventListener("error", () => {
    show("lost", "lost", "The connection was lost; it will reconnect");
    if (line.readyState !== EventSource.CLOSED) return; // the browser itself makes it again
    hangUp();
    redial = setTimeout(listen, calling.next());
  });
}

function hangUp() {
  clearTimeout(redial);
  line?.close();
  line = null;
}

describe(document);
// On a phone the pages' names do not all fit: the one that is shown stands in view.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

if (pulse && parts.length) {
  if (html.dataset.live) show("wait", "…", "Connecting");
  listen();
  pulse.addEventListener("click", () => {
    held = !held;
    pulse.setAttribute("aria-pressed", String(!held));
    listen();
    if (held) show("held", "held", "Paused; press to continue");
    else refresh();
  });
  document.addEventListener("visibilitychange", () => { listen(); look(); });
  document.addEventListener("focusout", () => { if (left) refresh(); });
  tick();
}
