"use strict";
// What every symbol of the pages means: [label, sentence]; shown as a tooltip and in the legends beside it.

const TERMS = {
  weight: ["credit weight W", "How many times the even share of its episode's credit the turn gets. 1 is what GRPO gives every turn; over an episode W averages 1 a token. A·W is the turn's credit."],
  advantage: ["advantage A", "The episode's reward minus the mean of its siblings' rewards, over their standard deviation: the outcome's own credit, the same for every turn."],
  residual: ["residual", "What the penalty of invalid actions adds to the turn after W."],
  evidence: ["evidence E", "The turn's rectified gap with the sign of A: above 0 where the privileged view speaks for what the outcome says."],
  identity_gap: ["identity gap", "How much more likely the turn's tokens are, in nats a token, when the policy reads the skill in the turn's own history."],
  rectified_gap: ["rectified gap", "The identity gap after a part alpha of the privileged view is taken from the histories of matched sibling turns."],
  rho: ["rho", "How sure the matches are, 0 to 1: their weighted similarity above the threshold."],
  alpha: ["alpha", "The part of the privileged view that comes from matched sibling turns: 0 without a match, larger the more alike they are."],
  divergence: ["divergence", "How much the turns that match this one differ from those that match the turn before it, in bits; a large one begins a new decision span."],
  span: ["decision span", "Turns in a row that work on one decision; credit is first shared between spans, then inside each."],
  span_budget: ["span budget B", "The part of the episode's credit that goes to the turn's span: by its tokens and its mean E."],
  turn_share: ["share Q", "The part of its span's budget that goes to the turn: by its tokens and its own E."],
  density: ["density", "How many times the even share B and Q give the turn, before the box."],
  projected_density: ["box", "No turn may get more than a fixed multiple of the even share; what is cut off goes to the others."],
  mixed: ["mixed with 1", "W lies between the boxed density and the even share 1, so that no turn loses all credit."],
  even: ["even share", "What each turn of the episode gets without any evidence: 1."],
  tokens: ["tokens", "Tokens of the response that are trained on."],
  similarity: ["similarity", "Cosine of what the student thought here and what the teacher thought there; turns above a threshold match."],
  match: ["weight of a match", "The match's part among all matches of the turn."],
};

const labelOf = (name) => (TERMS[name] || [name.replaceAll("_", " ")])[0];
const meaning = (name) => (TERMS[name] || ["", null])[1];
const term = (name, text = labelOf(name)) => (meaning(name) ? make("abbr", { title: meaning(name) }, text) : text);
const glossary = (names) => make("dl", { class: "terms" }, names.filter(meaning).map((name) => [make("dt", {}, labelOf(name)), make("dd", {}, meaning(name))]).flat());
