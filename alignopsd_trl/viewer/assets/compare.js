"use strict";
// Several runs: a row each with results and paired differences to the first, then curves as small multiples.

const head = JSON.parse(document.getElementById("head").textContent);

function results() {
  const point = (value) => (value ? `${signed(value.mean, 1)} [${signed(value.low, 1)}, ${signed(value.high, 1)}]` : "–");
  const rows = head.names.map((name, at) => {
    const { before, after } = head.evaluation[at], pair = at ? head.paired[at] : null;
    return [name, head.facts[at].method || "–", head.facts[at].seed || "–", estimate(before && before.success), estimate(after && after.success), estimate(after && after.score), point(pair && pair.success), point(pair && pair.score), pair ? `${pair.newly_won} won, ${pair.newly_lost} lost of ${pair.tasks}` : "–"];
  });
  return table(["run", "method", "seed", "success before, %", "success after, %", "score after, %", `success − ${head.names[0]}, points`, "score, points", "episodes that changed"], rows);
}

function warnings() {
  const sums = new Set(head.evaluation.map((one) => one.after && one.after.checksum).filter(Boolean));
  return sums.size > 1 ? make("p", { class: "lost" }, "The runs were evaluated on different panels; differences are over the tasks that both have.") : null;
}

function multiples(title, curves, options) {
  const names = [...new Set(curves.flat().map((line) => line.name))];
  return [make("h2", {}, title), ...names.map((name) => make("div", { class: "multiples" }, curves.map((lines, at) => {
    const line = lines.find((one) => one.name === name);
    return line ? curve({ ...line, name: `${head.names[at]}: ${name}` }, options) : null;
  })))];
}

document.getElementById("page").replaceChildren(
  make("header", {}, make("h1", {}, head.names.join(" · ")), make("span", { class: "right" }, theme())),
  make("div", { class: "wide" }, warnings(), results(), ...multiples(`difference to ${head.names[0]}`, head.differences.slice(1).reduce((all, one, at) => { all[at + 1] = one; return all; }, [[]]), { width: 260, height: 70, zero: true }), ...multiples("each run", head.curves, { width: 260, height: 70 })),
);
