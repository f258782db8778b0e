// Moments in the reader's own time, and how far off they are, kept right as time passes.

const exact = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});
const clock = {
  minute: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }),
  hour: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
  day: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
  month: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" }),
};
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function moment(us) { return exact.format(new Date(us / 1000)); }

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

export function length(seconds) {
  let left = Math.round(seconds);
  if (left < 1) return "now";
  const said = [];
  for (const [unit, size] of UNITS) {
    const number = Math.floor(left / size);
    left -= number * size;
    if (number) said.push(`${number}${unit}`);
    if (said.length === 2) break;
  }
  return said.join("");
}

// Jobs are due by the server's clock; the reader's own may be wrong.
let ahead = 0;

export function follow(root) {
  const now = Date.parse(root.dataset.now);
  if (now) ahead = now - Date.now();
}

function relative(element) {
  const away = (Date.parse(element.dateTime) - Date.now() - ahead) / 1000;
  const text = length(Math.abs(away));
  const said = text === "now" ? "now" : away > 0 ? `in ${text}` : `${text} ago`;
  if (element.textContent !== said) element.textContent = said;
}

export function describe(root) {
  for (const each of root.querySelectorAll("time[data-t]")) {
    each.title = each.textContent;
    each.textContent = exact.format(new Date(each.dateTime));
  }
  for (const each of root.querySelectorAll("time[data-clock]")) {
    each.textContent = clock[each.dataset.clock].format(new Date(each.dateTime));
    each.title = zone;
  }
  root.querySelectorAll("time[data-rel]").forEach(relative);
}

follow(document.documentElement);
setInterval(() => document.querySelectorAll("time[data-rel]").forEach(relative), 1000);
