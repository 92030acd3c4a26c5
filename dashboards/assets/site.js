"use strict";
// Draws the page's charts and keeps menus, answers and charts in step. The page data is what dashboards/shell.py wrote.
// A selection can be linked to: experts.html#trace=...&scope=per-layer

const page = JSON.parse(document.getElementById("page-data").textContent);
const views = new Map();
const chosen = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const PICK = "policy_pick_store"; // where Vega-Lite keeps what is picked in a legend

// A row of choices that does not name a menu leaves it as it is.
function optionsOf(index) {
  const { name } = page.controls[index];
  const earlier = page.controls.slice(0, index).map((control) => control.name);
  const fits = (row) => name in row && earlier.every((other) => !(other in row) || row[other] === chosen[other]);
  return [...new Set(page.choices.filter(fits).map((row) => row[name]))];
}

// Every menu offers what exists together with the menus before it; a choice that no longer exists falls back to the first.
function fillMenus() {
  page.controls.forEach(({ name, labels }, index) => {
    const options = optionsOf(index);
    if (!options.includes(chosen[name])) chosen[name] = options[0];
    const menu = document.querySelector(`select[name="${name}"]`);
    menu.replaceChildren(...options.map((value) => new Option(labels[value] ?? value, value, false, value === chosen[name])));
    menu.disabled = options.length < 2;
    menu.title = menu.selectedOptions[0]?.text ?? "";
  });
}

function writeAnswers() {
  for (const [name, { depends, answers, missing }] of Object.entries(page.charts)) {
    const answer = answers[depends.map((key) => chosen[key]).join("|")];
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

async function draw(name, { spec }) {
  const datasets = structuredClone(page.data);
  const { view } = await vegaEmbed(document.getElementById(name), { ...spec, datasets }, {
    config: page.config,
    renderer: "svg",
    ast: true, // expressions are interpreted: the page allows no eval
    actions: { export: true, source: false, compiled: false, editor: false },
    downloadFileName: `tokentape-${name}`,
  });
  views.set(name, view);
  view.picks = spec.params?.some((param) => param.name === "policy_pick");
  await show(view, name);
  if (view.picks) view.addSignalListener("policy_pick", () => sharePick(view));
}

document.getElementById("controls")?.addEventListener("change", (event) => {
  chosen[event.target.name] = event.target.value;
  fillMenus();
  writeAnswers();
  showParts();
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
  for (const [name, view] of views) show(view, name);
});

fillMenus();
writeAnswers();
showParts();
Promise.all(Object.entries(page.charts).map(([name, chart]) => draw(name, chart))).then(
  () => { document.body.dataset.drawn = views.size; },
  (error) => console.error(error),
);
