"use strict";
// An episode as one text to read, with each turn's credit beside it and one sentence on why it is so much.

const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
const gapOf = (turn) => (turn.credit.rectified_gap === undefined ? turn.credit.identity_gap : turn.credit.rectified_gap);
const gapsOf = (turns) => turns.map(gapOf).filter((gap) => typeof gap === "number");
// a method that records the outcome's advantage by itself records all of a turn's credit as its advantage
const outcomeOf = ({ credit }) => (credit.outcome_advantage === undefined ? credit.advantage : credit.outcome_advantage);
const creditOf = ({ credit }) => (credit.outcome_advantage === undefined ? credit.advantage * (credit.weight === undefined ? 1 : credit.weight) + (credit.residual || 0) : credit.advantage);
const weightOf = (turn) => (outcomeOf(turn) ? (creditOf(turn) - (turn.credit.residual || 0)) / outcomeOf(turn) : 1);

// why a turn got more or less than its share of the episode's credit
function reason(rollout, turn) {
  const advantage = outcomeOf(turn), weight = weightOf(turn);
  if (typeof advantage !== "number") return "";
  const apart = rollout.turns.some((one) => Math.abs(creditOf(one) - outcomeOf(one)) > 1e-5), weighed = turn.credit.weight !== undefined;
  if (apart && !(weighed && advantage)) return `This method gives the turn ${signed(creditOf(turn))} and the episode's turns ${signed(mean(rollout.turns.map(creditOf)))} on average.`;
  if (advantage === 0) return "The episode's advantage over its siblings is 0, so there is no credit to give.";
  const start = `The episode did ${advantage > 0 ? "better" : "worse"} than its siblings, so its turns become ${advantage > 0 ? "more" : "less"} likely`;
  if (!weighed) return `${start}, all of them alike.`;
  const penalty = Math.abs(turn.credit.residual || 0) > 0.005 ? ` The penalty of invalid actions adds ${signed(turn.credit.residual)}.` : "";
  if (Math.abs(weight - 1) < 0.005) return `${start}; this one by its even share.${penalty}`;
  const amount = weight > 1 ? `this one by ${shown(weight)} times its even share` : `this one by only ${shown(weight)} of its even share`;
  return `${start}; ${amount}${cause(rollout, turn)}.${penalty}`;
}

// what moved W furthest towards where it is. Shares are those of a softmax: a mean of others would not always lie on the other side
function cause(rollout, turn) {
  const steps = way(rollout, turn), more = weightOf(turn) > 1, up = more === outcomeOf(turn) > 0;
  if (!steps) return gapsOf([turn]).length ? `; the skill makes its words ${gapOf(turn) > 0 ? "more" : "less"} likely (${signed(gapOf(turn))} nats a token)` : "";
  const moves = steps.slice(1).filter(([, change]) => (more ? change > 0 : change < 0));
  const [name] = telling(moves, ([, change]) => Math.abs(change)) || [];
  const spans = [...new Set(rollout.turns.map((one) => one.credit.span))].map((span) => rollout.turns.filter((one) => one.credit.span === span));
  const own = spans.find((span) => span.includes(turn)), named = (turns) => (turns.length > 1 ? `turns ${turns[0].turn} to ${turns.at(-1).turn}` : `turn ${turns[0].turn}`);
  const compared = (whose, mine, others) => {
    const far = telling(others.filter((one) => gapsOf(one).length), (one) => (up ? -1 : 1) * mean(gapsOf(one)));
    if (!far || !gapsOf(mine).length) return "";
    return `, because the skill makes ${whose} words ${up ? "more" : "less"} likely than those of ${named(far)} (${signed(mean(gapsOf(mine)))} against ${signed(mean(gapsOf(far)))} nats a token)`;
  };
  if (name === "span_budget") return compared(`its decision span's (${named(own)})`, own, spans.filter((span) => span !== own));
  if (name === "turn_share") return compared("its", [turn], own.filter((one) => one !== turn).map((one) => [one]));
  return name === "projected_density" ? ", because turns beyond the limit gave their surplus to the others" : "";
}

// the columns of the text: before and after of a panel's task, the same task at its first and last step, or one episode
function columnsOf(task) {
  if (place.step === PANEL) return task.rollouts.map((rollout) => [`${rollout.rollout} training`, rollout]);
  const ends = head.again[task.task];
  if (!ends) return [[`step ${place.step}, sibling ${place.rollout}`, rolloutOf(task, place.rollout)]];
  return ends.map((step) => {
    const there = kept.get(step).tasks.find((one) => one.task === task.task);
    return [`step ${step}, sibling ${place.rollout}`, rolloutOf(there, place.rollout) || there.rollouts[0]];
  });
}

function reading() {
  const task = taskOf();
  if (!task) return make("section", { class: "detail" }, "no task");
  const alone = place.step !== PANEL && !head.again[task.task];
  return make("section", { class: "read" }, block("task", task.task_text), block("skill, which the teacher reads", task.skill_text),
    make("div", { class: alone ? "" : "pair" }, columnsOf(task).map(([name, rollout]) => episode(name, rollout))));
}

function episode(name, rollout) {
  const ended = rollout.won == null ? "ended" : rollout.won ? "won" : "not won";
  return make("article", {}, make("h3", {}, name, make("span", { class: rollout.won ? "won" : "lost" }, `  ${ended}, reward ${shown(rollout.reward)}, ${rollout.turns.length} turns`)),
    rollout.turns.map((turn, at) => spoken(rollout, turn, at)), rollout.turns.length ? null : make("p", { class: "none" }, rollout.message || rollout.stop));
}

function spoken(rollout, turn, at) {
  const credit = creditOf(turn), known = Number.isFinite(credit);
  const reach = Math.max(...rollout.turns.map((one) => Math.abs(creditOf(one)) || 0), 1e-6);
  const label = `turn ${turn.turn}${known ? `, credit ${signed(credit)}` : ""}${turn.action_valid === false ? ", invalid" : ""}`;
  const opening = at === 0 && turn.prompt ? make("details", {}, make("summary", {}, "first prompt"), make("p", { class: "text" }, turn.prompt)) : null;
  return make("div", { class: "spoken", "data-turn": turn.turn, "data-credit": known ? credit : null, style: `border-color:${known ? tint(credit / reach) : "var(--line)"}` },
    make("h2", { title: known && turn.credit.weight !== undefined ? `A·W = ${signed(outcomeOf(turn), 3)} × ${shown(weightOf(turn), 3)}` : null }, label), opening,
    turn.thinking ? make("p", { class: "text thought" }, turn.thinking) : null, make("p", { class: "text act" }, turn.action || turn.response), turn.observation ? make("p", { class: "text" }, turn.observation) : null,
    make("p", { class: "none reason" }, reason(rollout, turn)));
}
