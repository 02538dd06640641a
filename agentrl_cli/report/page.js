"use strict";
// Search, filter and sort episodes; compare two episodes or runs side by side. The page is complete without it.
const MADE = (name, options = {}, ...children) => {
  const element = Object.assign(document.createElement(name), options);
  element.append(...children);
  return element;
};
const number = (element, key) => Number.parseFloat(element.dataset[key] || "-1");
const ORDERS = {
  "in the order played": (a, b) => number(a, "order") - number(b, "order"),
  "by task": (a, b) => a.querySelector("summary").textContent.localeCompare(b.querySelector("summary").textContent),
  "by the critic's error": (a, b) => number(b, "wrong") - number(a, "wrong"),
  "longest first": (a, b) => number(b, "turns") - number(a, "turns"),
};
const ENDS = {
  "all": () => true,
  "won": (ends) => ends.includes("won"),
  "lost": (ends) => ends.includes("lost"),
  "newly won": (ends) => ends.includes("won") && ends.includes("changed"),
  "newly lost": (ends) => ends.includes("lost") && ends.includes("changed"),
};

function choice(label, names) {
  const select = MADE("select", { ariaLabel: label });
  select.append(...Object.keys(names).map((name) => MADE("option", { textContent: name })));
  return select;
}

function addTools(list) {
  const episodes = [...list.querySelectorAll(":scope > .episode")];
  if (episodes.length < 2) return;
  const words = MADE("input", { type: "search", placeholder: "search in these episodes", ariaLabel: "search" });
  const ends = choice("which", ENDS), order = choice("order", ORDERS), count = MADE("span");
  const update = () => {
    const wanted = words.value.toLowerCase();
    for (const episode of episodes) {
      const fits = ENDS[ends.value](episode.dataset.end.split(" "));
      episode.hidden = !(fits && episode.textContent.toLowerCase().includes(wanted));
    }
    list.append(...[...episodes].sort(ORDERS[order.value]));
    count.textContent = `${episodes.filter((episode) => !episode.hidden).length} of ${episodes.length}`;
  };
  for (const control of [words, ends, order]) control.addEventListener("input", update);
  list.before(MADE("div", { className: "tools" }, words, ends, order, count));
  update();
}

const chosen = [];

function showComparison() {
  document.getElementById("comparison")?.remove();
  if (!chosen.length) return;
  const columns = chosen.map((details) => {
    const inside = details.querySelector(".inside").cloneNode(true);
    for (const element of inside.querySelectorAll("[id]")) element.removeAttribute("id");
    for (const element of inside.querySelectorAll(".tools, summary button")) element.remove();
    return MADE("div", {}, MADE("h4", { textContent: titleOf(details) }), inside);
  });
  const close = MADE("button", { textContent: "close" });
  close.addEventListener("click", () => { chosen.length = 0; showComparison(); });
  const shown = columns.length < 2  // a low strip, which leaves the other buttons free
    ? MADE("span", { textContent: ` ${titleOf(chosen[0])}: press compare at another one` })
    : MADE("div", { className: "pair" }, ...columns);
  document.body.append(MADE("section", { id: "comparison" }, close, shown));
}

function titleOf(details) {
  const summary = details.querySelector("summary").cloneNode(true);
  for (const element of summary.querySelectorAll("button, svg")) element.remove();
  const run = details.parentElement.closest("details.run");
  const words = [...summary.childNodes].map((node) => node.textContent.trim()).filter(Boolean);
  return [...(run ? [`${titleOf(run)}:`] : []), ...words].join(" ");
}

function addCompare(details) {
  const button = MADE("button", { textContent: "compare", title: "show this and another one side by side" });
  button.addEventListener("click", (event) => {
    event.preventDefault();
    if (!chosen.includes(details)) chosen.push(details);
    if (chosen.length > 2) chosen.shift();
    showComparison();
  });
  details.querySelector("summary").append(button);
}

document.querySelectorAll(".episodes").forEach(addTools);
for (const kind of ["details.run", "details.episode"]) {
  const found = document.querySelectorAll(kind);
  if (found.length > 1) found.forEach(addCompare);
}
