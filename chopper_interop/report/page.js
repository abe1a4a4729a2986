"use strict";
// Charts and tables of the report. Texts reach the page as text nodes alone, never as markup.
const report = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
document.body.append(tip);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function showTip(rows, x, y) {
  tip.replaceChildren(element("table", {}, ...rows.map(([name, value]) =>
    element("tr", {}, element("td", { textContent: name }), element("td", { textContent: value })))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + box.height + 24 > innerHeight ? y - box.height - 10 : y + 14}px`;
}

function hideTip() { tip.hidden = true; }

// Charts: drawn when they come near the window, and again when the colours of the system change.
const NARROW = 600;
function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = {
    labelColor: of("muted"), titleColor: of("muted"), gridColor: of("line"), domainColor: of("line"),
    tickColor: of("line"), labelLimit: innerWidth < NARROW ? Math.round(0.58 * innerWidth) : 250,
  };
  return { axis, legend: { labelColor: of("muted"), titleColor: of("muted") }, background: null };
}

function legend({ title, domain, range }) {
  const items = domain.map((name, i) => {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    mark.setAttribute("aria-hidden", "true");
    for (const [key, value] of [["width", 11], ["height", 11], ["rx", 2], ["fill", range[i]]]) {
      box.setAttribute(key, value);
    }
    mark.append(box);
    return element("li", {}, mark, String(name));
  });
  const heading = title ? [element("li", { textContent: `${title}:` })] : [];
  return element("ul", { className: "legend" }, ...heading, ...items);
}

function draw(place) {
  const spec = structuredClone(report.charts[place.dataset.chart]);
  const named = (spec.scales || []).find((s) => s.name === "color" && s.type === "ordinal");
  if (named) {
    if (spec.legends && !place.dataset.drawn) place.before(legend(named));
    spec.legends = [];
  }
  if (innerWidth < NARROW) {
    // it begins where the cells do, behind the names of rows
    for (const one of spec.legends || []) one.gradientLength = 110;
  }
  const tooltip = (_handler, event, _item, value) =>
    value ? showTip(Object.entries(value), event.clientX, event.clientY) : hideTip();
  return vegaEmbed(place, spec, {
    mode: "vega", ast: true, renderer: "canvas", actions: false, defaultStyle: false,
    config: colours(), tooltip,
  }).then(() => { place.dataset.drawn = "yes"; });
}

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting) {
      near.unobserve(target);
      draw(target);
    }
  }
}, { rootMargin: "500px" });
const places = [...document.querySelectorAll("[data-chart]")];
for (const place of places) {
  place.style.minHeight = `${place.dataset.height}px`;
  near.observe(place);
}
dark.addEventListener("change", () => places.filter((p) => p.dataset.drawn).forEach(draw));
addEventListener("beforeprint", () => places.filter((p) => !p.dataset.drawn).forEach(draw));

// Tables: sorted by a click on a heading, filtered by what is typed, first rows first.
const FIRST = 50, LONG = 30, WHOLE = 84, LEAST = 0.001, OPTION = /(--[a-z-]+)/; // options of commands are not broken at their hyphens

function text(value) {
  if (value === null) return "–";
  if (typeof value !== "number") return String(value);
  if (Math.abs(value) < LEAST && value) return `< ${LEAST}`;
  return value.toLocaleString("en", Number.isInteger(value) ? {} : { minimumSignificantDigits: 4, maximumSignificantDigits: 4 });
}

function compare(column, sign) {
  return (a, b) => {
    const [x, y] = [a[column], b[column]];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
  };
}

// At most so many letters: the middle is left out, as names of kernels differ at both ends.
function cut(name, length) {
  const end = (length - 1) >> 1;
  return name.length > length ? `${name.slice(0, length - 1 - end)}…${name.slice(name.length - end)}` : name;
}

// Names as cells have room for them; those that would look alike are cut where they begin to differ.
function cutAll(names) {
  const alike = new Map(), shown = new Map();
  for (const name of new Set(names)) alike.set(cut(name, WHOLE), [...(alike.get(cut(name, WHOLE)) || []), name]);
  for (const [short, same] of alike) {
    const half = WHOLE >> 1, isAlone = same.length === 1;
    let at = 0;
    while (!isAlone && same.every((name) => name[at] === same[0][at])) at++;
    for (const name of same) shown.set(name, isAlone ? short : `${name.slice(0, half)}…${cut(name.slice(Math.max(at - 8, half)), half)}`);
  }
  return shown;
}

function isLong(value) { return typeof value === "string" && value.length > LONG; }

function cell(value, numeric, short) {
  const shown = text(value);
  if (numeric || !isLong(shown)) return element("td", { className: numeric ? "number" : "", textContent: shown });
  const name = element("div", { title: shown });
  if (short === undefined || short === shown) {
    name.append(...shown.split(OPTION).map((part, i) => (i % 2 ? element("span", { className: "option", textContent: part }) : part)));
  } else {
    name.textContent = short;
    name.className = "cut";
    name.addEventListener("click", () => { name.textContent = name.textContent === short ? shown : short; });
  }
  return element("td", { className: "name" }, name);
}

function table({ columns, rows }, caption) {
  const numeric = columns.map((_, i) => rows.some((r) => typeof r[i] === "number") && rows.every((r) => r[i] === null || typeof r[i] === "number"));
  const texts = columns.filter((_, i) => rows.some((r) => isLong(r[i]))).length > 1;
  let shown = rows, order = null, all = false, whole = false, wanted = "";
  // sentences are read, and commands are there to be copied
  const cuts = columns.map((title, i) => cutAll(["finding", "command"].includes(title) ? [] : rows.map((r) => r[i]).filter(isLong)));
  const body = element("tbody");
  const more = element("button", { type: "button" });
  const count = element("span", { className: "muted", role: "status" });
  const heads = columns.map((title, i) => {
    const button = element("button", { type: "button", textContent: title });
    const head = element("th", { scope: "col", className: numeric[i] ? "number" : "" }, button);
    button.addEventListener("click", () => {
      const last = head.getAttribute("aria-sort"), up = last ? last === "descending" : !numeric[i]; // the largest numbers first
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      order = compare(i, up ? 1 : -1);
      fill();
    });
    return head;
  });
  function fill() {
    shown = wanted ? rows.filter((r) => r.some((v) => typeof v === "string" && v.toLowerCase().includes(wanted))) : rows.slice();
    if (order) shown.sort(order);
    const drawn = all ? shown : shown.slice(0, FIRST);
    body.replaceChildren(...drawn.map((row) => element("tr", {}, ...row.map((value, i) =>
      cell(value, numeric[i], whole ? undefined : cuts[i].get(value))))));
    count.textContent = `${drawn.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    more.hidden = drawn.length === shown.length;
    more.textContent = `Show all ${shown.length.toLocaleString("en")}`;
  }
  more.addEventListener("click", () => { all = true; fill(); });
  const names = element("button", { type: "button", textContent: "Whole names", ariaPressed: "false", hidden: !cuts.some((c) => [...c].some(([name, short]) => short !== name)) });
  names.addEventListener("click", () => { whole = !whole; names.ariaPressed = String(whole); fill(); });
  const filter = element("input", { type: "search", placeholder: "Filter by name", ariaLabel: `Filter ${caption}` });
  filter.addEventListener("input", () => { wanted = filter.value.toLowerCase(); fill(); });
  fill();
  const scroll = element("div", { className: "table", tabIndex: 0, role: "region", ariaLabel: caption },
    element("table", { className: texts ? "texts" : "" }, element("thead", {}, element("tr", {}, ...heads)), body));
  const tools = element("div", { className: "tools" }, ...(rows.length > 8 ? [filter, count, more] : []), names);
  return element("div", {}, ...(rows.length > 8 || !names.hidden ? [tools] : []), scroll);
}

for (const place of document.querySelectorAll("[data-table]")) {
  place.append(table(report.tables[place.dataset.table], place.dataset.caption));
}

// Data behind a chart, for those who cannot see it and for those who want the figures.
for (const details of document.querySelectorAll("details[data-of]")) {
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const values = report.charts[details.dataset.of].data.map((d) => d.values).find((v) => Array.isArray(v) && v.length) || [];
    const columns = [...new Set(values.flatMap(Object.keys))].filter((name) => name !== "order" && name !== "row");
    details.append(table({ columns, rows: values.map((row) => columns.map((name) => row[name] ?? null)) }, "data of the chart"));
  });
}
