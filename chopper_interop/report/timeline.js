"use strict";
// The timeline of one step: rectangles on a canvas that zooms and moves by mouse, touch and keyboard.
function timeline(canvas, data) {
  const LABEL = innerWidth < 600 ? 62 : 92, AXIS = 22, many = data.rows.length > 40;
  const ROW = many ? 7 : 15, GAP = many ? 1 : 2;
  const PATH = many ? 8 : 0; // room for the name of the first row, which has no second one below it
  const tops = data.rows.map((row, i) => AXIS + i * (ROW + GAP) + Math.floor((i + 1) / 2) * (many ? 2 : 5) + (i ? PATH : 0));
  const height = tops[tops.length - 1] + ROW + 8;
  const context = canvas.getContext("2d"), view = canvas.parentElement;
  let from = 0, to = data.span, width = 0, queued = false, chosen = null, chosenAt = 0;

  const scale = () => (width - LABEL) / (to - from);
  const timeAt = (x) => from + (x - LABEL) / scale();

  function show(start, end) {
    const least = Math.min(1000, data.span), length = Math.min(Math.max(end - start, least), data.span);
    from = Math.min(Math.max(start + (end - start - length) / 2, 0), data.span - length);
    to = from + length;
    if (!queued) requestAnimationFrame(drawAll);
    queued = true;
  }
  function zoom(factor, at = (from + to) / 2) { show(at - (at - from) * factor, at + (to - at) * factor); }
  function move(share) { show(from + share * (to - from), to + share * (to - from)); }

  function firstEndingAfter(row, time) {
    let low = 0, high = row.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.reach[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  function unit(span) {
    return [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([size]) => span >= size * 0.5) || [1, "ns"];
  }

  function ink(colour) {
    const [red, green, blue] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    return 0.3 * red + 0.59 * green + 0.11 * blue > 135 ? "#14171b" : "#fff";
  }

  function drawAxis(style) {
    const rough = (to - from) * 90 / (width - LABEL), power = 10 ** Math.floor(Math.log10(rough));
    const gap = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
    const [size, name] = unit(to - from);
    context.fillStyle = style.muted;
    context.strokeStyle = style.line;
    context.textAlign = "left";
    for (let at = Math.ceil(from / gap) * gap; at <= to; at += gap) {
      const x = Math.round(LABEL + (at - from) * scale()) + 0.5;
      context.beginPath(); context.moveTo(x, 4); context.lineTo(x, height); context.stroke();
      const label = `${Number((at / size).toPrecision(7))} ${name}`;
      if (x + 3 + context.measureText(label).width <= width) context.fillText(label, x + 3, 12);
    }
  }

  function fitting(name, room) {
    if (context.measureText(name).width <= room) return name;
    let low = 0, high = name.length; // as much of it as fits
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (context.measureText(cut(name, middle + 1)).width <= room) low = middle; else high = middle;
    }
    return low < 12 ? `${name.slice(0, low)}…` : cut(name, low + 1); // of few letters, two ends are no name
  }

  function drawRow(row, top, style) {
    const colours = data.legends[row.legend].range;
    let last = -1, lastColour = "";
    for (let i = firstEndingAfter(row, from); i < row.start.length && row.start[i] < to; i++) {
      const left = Math.max(LABEL, LABEL + (row.start[i] - from) * scale());
      const right = Math.min(width, LABEL + (row.start[i] + row.dur[i] - from) * scale());
      const size = Math.max(right - left, 1), colour = colours[row.category[i]];
      if (left + size <= last + 1 && colour === lastColour) continue;
      last = left + size; lastColour = colour;
      context.fillStyle = colour;
      context.fillRect(left, top, size > 3 ? size - 0.5 : size, ROW);
      if (row.critical[i] && data.marks && row !== data.rows[0]) { context.fillStyle = style.text; context.fillRect(left, top + ROW - 2, size, 2); }
      if (size > 46 && !many) {
        context.fillStyle = ink(colour); context.textAlign = "left";
        context.fillText(fitting(data.names[row.name[i]], size - 6), left + 3, top + ROW - 4);
      }
    }
  }

  function drawAll() {
    queued = false;
    const ratio = devicePixelRatio || 1, page = getComputedStyle(document.documentElement);
    const style = Object.fromEntries(["text", "muted", "line"].map((n) => [n, page.getPropertyValue(`--${n}`).trim()]));
    width = canvas.clientWidth;
    canvas.width = width * ratio; canvas.height = height * ratio;
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    drawAxis(style);
    data.rows.forEach((row, i) => drawRow(row, tops[i], style));
    context.clearRect(0, AXIS, LABEL - 1, height);
    context.fillStyle = style.muted; context.textAlign = "right";
    data.rows.forEach((row, i) => { if (row.label) context.fillText(row.label, LABEL - 7, tops[i] + (many ? 8 : ROW - 3), LABEL - 9); });
    if (chosen) {
      const { row, i } = chosen;
      context.strokeStyle = style.text; context.lineWidth = 2;
      context.strokeRect(LABEL + (row.start[i] - from) * scale(), tops[data.rows.indexOf(row)] - 1, Math.max(row.dur[i] * scale(), 2), ROW + 2);
    }
    canvas.dataset.drawn = "yes";
  }

  function at(x, y) {
    const row = data.rows[tops.findIndex((top) => y >= top && y < top + ROW + GAP)];
    if (!row || x < LABEL) return null;
    const time = timeAt(x), slop = 2 / scale();
    let best = null;
    for (let i = firstEndingAfter(row, time - slop); i < row.start.length && row.start[i] <= time + slop; i++) {
      if (row.start[i] + row.dur[i] >= time - slop && (!best || row.dur[i] < row.dur[best.i])) best = { row, i };
    }
    return best;
  }
  function facts({ row, i }) {
    const time = (ns) => { const [size, name] = unit(ns); return `${Number((ns / size).toPrecision(5))} ${name}`; };
    return [["", data.names[row.name[i]]], ["category", data.legends[row.legend].domain[row.category[i]]], ["on", row.full],
      ["start", time(row.start[i])], ["duration", time(row.dur[i])],
      ...(data.marks ? [["critical path", row.critical[i] ? "yes" : "no"]] : [])];
  }

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event.offsetX); canvas.setPointerCapture(event.pointerId); });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const found = at(event.offsetX, event.offsetY);
      if (found) showTip(facts(found), event.clientX, event.clientY); else hideTip();
      return;
    }
    const before = [...fingers.values()];
    fingers.set(event.pointerId, event.offsetX);
    const after = [...fingers.values()];
    if (after.length === 1) { const by = (before[0] - after[0]) / scale(); show(from + by, to + by); return; }
    zoom(Math.abs(before[0] - before[1]) / Math.max(Math.abs(after[0] - after[1]), 1), timeAt((after[0] + after[1]) / 2));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.offsetX)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    if (event.shiftKey && !event.ctrlKey) move((event.deltaX || event.deltaY) / 600); else zoom(1.0015 ** event.deltaY, timeAt(event.offsetX));
  }, { passive: false });
  function choose(found, time = found ? found.row.start[found.i] : from) {
    chosen = found; chosenAt = time;
    document.getElementById("chosen").textContent = found ? facts(found).map(([k, v]) => (k ? `${k}: ${v}` : v)).join(" · ") : "";
    show(from, to);
  }
  canvas.addEventListener("click", (event) => choose(at(event.offsetX, event.offsetY)));

  // By keyboard: work before or after what is chosen, or that of the next row at this time; it comes into view.
  function chooseInView(row, i, at) {
    choose({ row, i }, at);
    const time = row.start[i] + row.dur[i] / 2, y = canvas.getBoundingClientRect().top - view.getBoundingClientRect().top + tops[data.rows.indexOf(row)];
    if (time < from || time > to) show(time - (to - from) / 2, time + (to - from) / 2);
    if (y < 0 || y + ROW > view.clientHeight) view.scrollBy(0, y - view.clientHeight / 2);
  }
  function nearest(row, time) { return Math.min(firstEndingAfter(row, time), row.start.length - 1); }
  function chooseNext(by) {
    if (!chosen) return chooseRow(1);
    const i = chosen.i + by;
    if (i >= 0 && i < chosen.row.start.length) chooseInView(chosen.row, i);
  }
  function chooseRow(by) {
    const time = chosen ? chosenAt : from; // that of one row after the other would drift
    let n = chosen ? data.rows.indexOf(chosen.row) + by : 0;
    while (data.rows[n] && !data.rows[n].start.length) n += by;
    if (data.rows[n]) chooseInView(data.rows[n], nearest(data.rows[n], time), time);
  }
  const keys = {
    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), a: () => move(-0.15), d: () => move(0.15),
    "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6), "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
    0: () => show(0, data.span), Home: () => show(0, data.span),
    ",": () => chooseNext(-1), ".": () => chooseNext(1), ArrowUp: () => chooseRow(-1), ArrowDown: () => chooseRow(1),
    Escape: () => choose(null),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = !event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  const buttons = { in: keys["+"], out: keys["-"], left: keys.ArrowLeft, right: keys.ArrowRight, all: keys[0] };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", buttons[button.dataset.zoom]);

  for (const row of data.rows) {
    let reach = 0;
    row.reach = row.start.map((start, i) => (reach = Math.max(reach, start + row.dur[i])));
  }
  canvas.style.height = `${height}px`;
  new ResizeObserver(() => show(from, to)).observe(canvas);
  dark.addEventListener("change", () => show(from, to));
}

const drawing = document.querySelector("canvas.timeline");
if (drawing) {
  drawing.parentElement.before(...report.timeline.legends.filter((l) => l.domain.length).map(legend));
  timeline(drawing, report.timeline);
}
