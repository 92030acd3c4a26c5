"use strict";
// Draws the page's charts and keeps menus, sliders, answers and charts in step. The page data is what dashboards/shell.py wrote.
// A selection can be linked to: experts.html#trace=...&scope=per-layer

const page = JSON.parse(document.getElementById("page-data").textContent);
const views = new Map();
const linked = [...new URLSearchParams(location.hash.slice(1))];
const chosen = Object.fromEntries(linked.filter(([name]) => page.controls.some((control) => control.name === name)));
const PICK = "policy_pick_store"; // where Vega-Lite keeps what is picked in a legend
const PHONE = 400; // px for a chart

// A row of choices that leaves a control out goes with any value of it.
function optionsOf(index) {
  const { name } = page.controls[index];
  const earlier = page.controls.slice(0, index).map((control) => control.name);
  const fits = (row) => name in row && earlier.every((other) => !(other in row) || row[other] === chosen[other]);
  return [...new Set(page.choices.filter(fits).map((row) => row[name]))];
}

// A slider runs from the least to the most, whichever value comes first in the choices and is where it opens.
const alongSlider = (options) => options.toSorted((a, b) => a - b);

// Every control offers what exists together with those before it; a choice that no longer exists falls back to the first.
function fillControls() {
  page.controls.forEach(({ name, labels }, index) => {
    const options = optionsOf(index);
    if (!options.includes(chosen[name])) chosen[name] = options[0];
    const element = document.querySelector(`#controls [name="${name}"]`);
    const words = labels[chosen[name]] ?? chosen[name];
    if (element.type === "range") {
      element.max = options.length - 1;
      element.value = alongSlider(options).indexOf(chosen[name]);
      element.ariaValueText = element.nextElementSibling.value = words;
    } else {
      const entry = (value) => new Option(labels[value] ?? value, value, false, value === chosen[name]);
      element.replaceChildren(...options.map(entry));
    }
    element.disabled = options.length < 2;
    element.title = words;
  });
}

function writeAnswers() {
  for (const [name, { depends, answers, missing }] of Object.entries(page.charts)) {
    const of = (tape) => answers[depends.map((key) => (key === "trace" && tape) || chosen[key]).join("|")];
    const other = chosen.beside && depends.includes("trace") && chosen.beside !== chosen.trace && of(chosen.beside); // of two tapes side by side
    const answer = other ? `${chosen.trace}: ${of() ?? missing} ${chosen.beside}: ${other}` : of();
    const place = document.getElementById(`${name}-answer`);
    place.textContent = answer ?? missing;
    place.classList.toggle("missing", answer === undefined);
    document.getElementById(name).hidden = answer === undefined;
  }
}

// Parts of the page that belong to one option of a menu.
function showParts() {
  for (const part of document.querySelectorAll("[data-when]")) part.hidden = chosen[part.dataset.when] !== part.dataset.is;
}

// Hands the view the choices its chart knows; resize() lets axes with wider numbers have their room. A chart that has no rows for
// the choices is hidden and keeps what it drew.
async function show(view, name) {
  if (document.getElementById(name).hidden) return;
  const known = page.charts[name].spec.params?.map((param) => param.name) ?? [];
  for (const [key, value] of Object.entries(chosen)) if (known.includes(key)) view.signal(key, value);
  await view.resize().runAsync();
}

// What is picked in one legend is picked in all charts. Every view gets tuples of its own: Vega marks the ones it holds.
function sharePick(source) {
  const picks = () => source.data(PICK).map(({ unit, fields, values }) => ({
    unit, values: [...values], fields: fields.map(({ type, field }) => ({ type, field })),
  }));
  const valuesOf = (view) => JSON.stringify(view.data(PICK).map((tuple) => tuple.values));
  for (const view of views.values()) {
    if (view.picks && valuesOf(view) !== valuesOf(source)) view.data(PICK, picks()).run();
  }
}

// Methods that are picked by a click, with shift several, or by a box, in any chart or table; the others fade.
let picked = [];
let justBrushed = false;
function pick(names) {
  picked = names;
  for (const view of views.values()) if (view.pickField) view.signal("pick", picked).runAsync();
  for (const [name, { spec }] of Object.entries(page.charts)) if (spec.table) fillTable(name, spec.table);
}

function clickOn(name, several) {
  if (name === undefined) pick([]);
  else if (several) pick(picked.includes(name) ? picked.filter((other) => other !== name) : [...picked, name]);
  else pick(picked.length === 1 && picked[0] === name ? [] : [name]);
}

// What the marks of a chart that lie within the box are of.
function within(view, field, box) {
  const found = new Set();
  const inside = (datum) => Object.entries(box).every(([of, [from, to]]) => datum[of] >= Math.min(from, to) && datum[of] <= Math.max(from, to));
  const walk = (item) => {
    if (item.datum?.[field] !== undefined && inside(item.datum)) found.add(item.datum[field]);
    for (const one of item.items ?? []) walk(one);
  };
  walk(view.scenegraph().root);
  return [...found];
}

function sharePicks(view, { usermeta }) {
  view.pickField = usermeta?.pick;
  if (!view.pickField) return;
  view.addEventListener("click", (event, item) => {
    if (justBrushed) justBrushed = false;
    else if (item?.mark.role === "axis-label") clickOn(String(item.datum.value), event.shiftKey);
    else clickOn(item?.datum?.[view.pickField], event.shiftKey);
  });
  if (view.getState({ signals: (name) => name === "brush" }).signals.brush === undefined) return;
  view.addSignalListener("brush", (_, box) => {
    justBrushed = Object.keys(box).length > 0;
    if (justBrushed) pick(within(view, view.pickField, box));
  });
}

const words = { "%": (value) => `${(100 * value).toFixed(1)} %`, x: (value) => `× ${value.toFixed(2)}` };
const digits = (value) => value.toLocaleString("en", Number.isInteger(value) ? {} : { maximumSignificantDigits: 3 });
const cellOf = (value, form) => (typeof value === "number" ? (words[form] ?? digits)(value) : value ?? "–");

// The rows of the chosen selection, in the order of the head that was clicked.
function fillTable(name, table) {
  const place = document.getElementById(name);
  const rows = page.data[table.data].filter((row) => table.here.every((key) => !(key in row) || String(row[key]) === chosen[key]));
  const { by, falls } = place.dataset;
  const order = (a, b) => (a[by] === null) - (b[by] === null) || (a[by] > b[by] ? 1 : a[by] < b[by] ? -1 : 0) * (falls ? -1 : 1);
  const made = document.createElement("table");
  const head = made.createTHead().insertRow();
  for (const [field, title] of table.columns) {
    const button = Object.assign(document.createElement("button"), { textContent: title || field, type: "button" });
    button.onclick = () => {
      place.dataset.falls = by === field && !falls ? "1" : "";
      place.dataset.by = field;
      fillTable(name, table);
    };
    const cell = head.appendChild(document.createElement("th"));
    cell.ariaSort = by === field ? (falls ? "descending" : "ascending") : "none";
    cell.append(button);
  }
  const body = made.createTBody();
  for (const row of by ? rows.toSorted(order) : rows) {
    const lines = [body.insertRow()];
    for (const [field, , form] of table.columns) {
      const cell = lines[0].insertCell();
      cell.textContent = cellOf(row[field], form);
      cell.classList.toggle("n", typeof row[field] === "number");
    }
    if (table.below) {
      lines.push(body.insertRow());
      const cell = Object.assign(lines[1].insertCell(), { className: "below", colSpan: table.columns.length });
      cell.appendChild(document.createElement("div")).textContent = cellOf(row[table.below]);
    }
    for (const line of lines) {
      line.classList.toggle("faded", picked.length > 0 && !picked.includes(row[table.pick]));
      if (table.pick) line.onclick = (event) => clickOn(row[table.pick], event.shiftKey);
    }
  }
  place.replaceChildren(made);
}

// Names of the rows that a chart or a table reads, of those that there are.
function dataOf(spec) {
  if (spec.table) return [spec.table.data];
  const named = JSON.stringify(spec).matchAll(/"data":\{"name":"(\w+)"/g);
  return [...new Set([...named].map((found) => found[1]))].filter((of) => of in page.data);
}

// Cells with words in them, which would run into each other.
function isTable({ layer = [], ...spec }) {
  const isWords = (of) => [spec, ...layer].some(({ encoding }) => ["nominal", "ordinal"].includes(encoding?.[of]?.type));
  return isWords("x") && isWords("y") && layer.some(({ mark }) => mark.type === "text");
}

// Panels that lie below one another are no wider than the window, but for tables. Those beside others scroll; on a phone they lie below one another
// too, but for those that leave their labels to the first.
function fitting(spec, room) {
  const { hconcat, concat, ...rest } = spec;
  const beside = hconcat ?? concat;
  const stacks = beside && room < PHONE && !/"axis":null|"labels":false/.test(JSON.stringify(beside));
  const panels = stacks ? beside : spec.vconcat;
  if (panels) return { ...rest, vconcat: panels.map((panel) => fitting(panel, room)) };
  return spec.width > room && !isTable(spec) ? { ...spec, width: room } : spec;
}

// A chart and its configuration in so much room: on a phone legends lie below, in fewer columns.
function inRoom(spec, room) {
  if (room >= PHONE) return [fitting(spec, room), page.config];
  const columns = Math.max(1, Math.floor(room / 160));
  const fewer = (key, value) => (key === "legend" && value?.columns > columns ? { ...value, columns } : value);
  const legend = { ...page.config.legend, orient: "bottom", columns: 1 };
  return [fitting(JSON.parse(JSON.stringify(spec, fewer)), room), { ...page.config, legend }];
}

async function draw(name, { spec }) {
  if (spec.table) return fillTable(name, spec.table);
  const place = document.getElementById(name);
  const datasets = structuredClone(Object.fromEntries(dataOf(spec).map((of) => [of, page.data[of]]))); // Vega marks the rows it holds
  const [drawn, config] = inRoom(spec, Math.max(220, place.clientWidth - 150));
  const { view } = await vegaEmbed(place, { ...drawn, datasets }, {
    config,
    renderer: "svg",
    ast: true, // expressions are interpreted: the page allows no eval
    actions: false,
  });
  views.set(name, view);
  sharePicks(view, spec);
  view.picks = JSON.stringify(spec).includes('"policy_pick"');
  await show(view, name);
  if (view.picks) view.addSignalListener("policy_pick", () => sharePick(view));
}

// A menu tells of a change once or twice, a slider while it is dragged.
function choose({ target }) {
  const index = page.controls.findIndex(({ name }) => name === target.name);
  const value = target.type === "range" ? alongSlider(optionsOf(index))[target.value] : target.value;
  if (chosen[target.name] === value) return;
  chosen[target.name] = value;
  fillControls();
  writeAnswers();
  showParts();
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
  for (const [name, view] of views) show(view, name);
  for (const [name, { spec }] of Object.entries(page.charts)) if (spec.table) fillTable(name, spec.table);
}

// Charts in a part that is closed are drawn when it is opened; a link to one opens it.
const drawing = new Map();
const isOpen = (name) => !document.getElementById(name).closest("details:not([open])");
function drawOpen() {
  for (const [name, chart] of Object.entries(page.charts)) if (!drawing.has(name) && isOpen(name)) drawing.set(name, draw(name, chart));
  return Promise.all(drawing.values()).then(() => { document.body.dataset.drawn = views.size; }, (error) => console.error(error));
}
async function follow() {
  const target = document.getElementById(location.hash.slice(1));
  const closed = target?.closest("details:not([open])");
  if (closed) closed.open = true;
  await drawOpen();
  target?.scrollIntoView(); // charts had no height before
}

// A figure's rows, picture and SQL.
function save(name, text, type) {
  const link = Object.assign(document.createElement("a"), { download: `tokentape-${name}`, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const cell = (value) => /[",\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");
const csvOf = (rows) => [Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(cell).join(",")).join("\n");
const does = {
  sql(name, button) {
    const shown = button.parentElement.querySelector("pre") ?? button.parentElement.appendChild(document.createElement("pre"));
    shown.textContent = page.charts[name].sql;
    getSelection().selectAllChildren(shown); // to be copied by hand where the browser refuses
    navigator.clipboard?.writeText(shown.textContent).catch(() => {});
  },
  csv(name) {
    for (const of of dataOf(page.charts[name].spec)) save(`${of}.csv`, csvOf(page.data[of]), "text/csv");
  },
  async svg(name) { save(`${name}.svg`, await views.get(name).toSVG(), "image/svg+xml"); },
};
addEventListener("click", ({ target }) => {
  if (target.dataset?.do) does[target.dataset.do](target.closest("section").querySelector(".chart, .scroll").id, target);
});

for (const part of document.querySelectorAll("details.more")) part.addEventListener("toggle", drawOpen);
addEventListener("hashchange", follow);
for (const kind of ["input", "change"]) document.getElementById("controls")?.addEventListener(kind, choose);

fillControls();
for (const [name, value] of linked) {
  const missed = name in chosen && chosen[name] !== value; // a link from the front page to a tape beyond those of this page, say
  if (missed) document.querySelector(".lead").append(` ${value} is not here to choose: the page shows ${chosen[name]}.`);
}
writeAnswers();
showParts();
if (matchMedia("(max-width: 1000px)").matches) document.querySelector("details.contents")?.removeAttribute("open");
follow();
