"use strict";
// Ranks methods by the round time predicted for the numbers in the form. The page's data and their
// packing are described in workflow/matrix/advice.py, page().

function unpack(data, text) {
  const code = parseInt(text, 36);
  return code ? data.least * 10 ** (code / data.steps) : 0;
}

// Coding, exchanging and the rest of a round (s) at a rate (bit/s): straight lines over 1 / rate.
function between(data, text, rate) {
  const points = text.match(/.{12}/g).map((point) => point.match(/.{3}/g).map((n) => unpack(data, n)));
  const wanted = rate / 1e9;
  let right = points.findIndex((point) => point[0] >= wanted);
  right = right < 0 ? points.length - 1 : Math.max(right, 1);
  const [low, high] = [points[right - 1], points[right]];
  const share = (1 / wanted - 1 / high[0]) / (1 / low[0] - 1 / high[0]);
  return [1, 2, 3].map((part) => Math.max(share * low[part] + (1 - share) * high[part], 0));
}

// Methods from the best, each with its rank; those that are not compared by the time of a round after
// them, without one; and those that cannot run there, or of which nobody knows how many rounds they
// need, where they are ranked by the time of all of them.
function ranked(data, { model, workers, kind, rate, by }) {
  const places = [data.models.indexOf(model), data.kinds.indexOf(kind), data.workers.indexOf(workers)];
  if (places.includes(-1)) throw new RangeError("outside of the grid");
  const index = (places[0] * data.kinds.length + places[1]) * data.workers.length + places[2];
  const offers = [];
  const missing = [];
  const trained = model === data.trained;
  for (const [label, curves] of Object.entries(data.curves)) {
    if (!curves[index]) {
      missing.push([label, data.reasons[label]?.[kind] ?? "cannot run there"]);
      continue;
    }
    const rounds = by === "target" ? trained && data.to_target[label] : 1;
    if (!rounds) {
      const why = trained ? data.late[label] ?? "was not trained" : `only ${data.trained} was trained`;
      missing.push([label, why]);
      continue;
    }
    const [coding, exchanging, rest] = between(data, curves[index], rate);
    const round = coding + exchanging + rest;
    offers.push({ label, rounds, time: rounds * round, round, coding, exchanging, rest });
  }
  const compared = new Set(by === "target" ? [] : data.compared[model]);
  const some = offers.some(({ label }) => compared.has(label));
  for (const offer of offers) offer.rank = some && !compared.has(offer.label) ? "" : 0;
  offers.sort((a, b) => (a.rank === "") - (b.rank === "") || a.time - b.time);
  let first = null;
  offers.forEach((offer, place) => {
    if (offer.rank === "") return;
    if (!first || offer.time > first.time * (1 + data.tie)) {
      first = offer;
      offer.rank = place + 1;
    } else {
      offer.rank = first.rank;
    }
  });
  return { offers, missing };
}

function seconds(value) {
  const [number, unit] = value >= 1 ? [value, "s"] : [1000 * value, "ms"];
  return `${Number(number.toPrecision(3))} ${unit}`;
}

// Why the first is first, against the first that does not tie with it.
function reason(offers, by) {
  const [first] = offers;
  const tied = offers.slice(1).filter((offer) => offer.rank === 1);
  const second = offers.find((offer) => offer.rank > 1);
  const names = tied.length ? `${first.label}, tied with ${tied.map((o) => o.label).join(" and ")},` : first.label;
  if (!second) return `${names} takes ${seconds(first.round)} a round: nothing sets it apart.`;
  const parts = { exchanging: "exchanging", coding: "coding", rest: "computing and waiting" };
  const [most] = Object.keys(parts).sort((a, b) => second[b] - first[b] - (second[a] - first[a]));
  const all = ({ time, rounds }) => `${seconds(time)} (${Math.round(rounds)} rounds)`;
  const told =
    by === "target"
      ? `${all(first)} to the target against ${all(second)} of ${second.label}; ` +
        `a round takes ${seconds(first.round)} against ${seconds(second.round)}`
      : `${seconds(first.round)} against ${seconds(second.round)} of ${second.label}`;
  if (second[most] <= first[most]) return `${names} is first: ${told}.`;
  return (
    `${names} is first: ${told}, which is ${seconds(second[most] - first[most])} longer ${parts[most]} ` +
    `(${seconds(second[most])}, not ${seconds(first[most])}).`
  );
}

// Who has a shorter round than the first, and why it has no rank.
function passed(offers) {
  const shorter = offers.filter(({ rank, time }) => rank === "" && time < offers[0].time);
  if (!shorter.length) return "";
  const names = shorter.slice(0, 5).map(({ label }) => label).join(", ") + (shorter.length > 5 ? ", …" : ".");
  return (
    ` ${shorter.length} have shorter rounds and no rank: they were not trained to a target, never reach it, ` +
    `or have rounds that hold only where they were trained: ${names}`
  );
}

function cell(row, text, tag = "td") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (tag === "th") made.scope = "row";
  else made.className = "num";
  row.append(made);
}

function start() {
  const data = JSON.parse(document.getElementById("advise-data").textContent);
  const form = document.getElementById("advise");
  const said = document.getElementById("advise-reason");
  const body = document.querySelector("#advice tbody");
  const missing = document.getElementById("advise-missing");

  function answer() {
    const { model, workers, kind, rate, unit, by } = form.elements;
    const asked = {
      model: model.value,
      workers: Number(workers.value),
      kind: kind.value,
      rate: Number(rate.value) * Number(unit.value),
      by: by?.value,
    };
    const [least, most] = data.span;
    body.replaceChildren();
    missing.textContent = "";
    const command = ["--model", model.value, "--workers", workers.value];
    command.push(kind.value === "flat" ? "--lan" : "--wan", `${rate.value}${unit.value === "1e6" ? "M" : "G"}`);
    if (asked.by === "target") command.push("--target", data.target);
    document.getElementById("advise-command").textContent = `slowlink advise ${command.join(" ")}`;
    if (!(asked.rate >= least && asked.rate <= most)) {
      said.textContent = `The form knows rates from ${least / 1e6} Mbit/s to ${most / 1e9} Gbit/s; for others, use the command.`;
      return;
    }
    const { offers, missing: without } = ranked(data, asked);
    said.textContent = offers.length ? reason(offers, asked.by) + passed(offers) : "No method can run there.";
    for (const offer of offers) {
      const row = body.insertRow();
      cell(row, offer.rank);
      cell(row, offer.label + (data.guessed.includes(offer.label) ? " *" : ""), "th");
      for (const part of ["round", "coding", "exchanging", "rest"]) cell(row, seconds(offer[part]));
      cell(row, data.rounds[offer.label] ?? "not trained");
      const rounds = model.value === data.trained ? data.to_target[offer.label] : undefined;
      cell(row, rounds === undefined ? "" : seconds(rounds * offer.round));
    }
    const grouped = {};
    for (const [label, why] of without) (grouped[why] ??= []).push(label);
    const texts = Object.entries(grouped).map(([why, labels]) => `${labels.join(", ")}: ${why}`);
    if (texts.length) missing.textContent = `Not ranked: ${texts.join("; ")}.`;
  }

  form.hidden = false;
  document.getElementById("advice").hidden = false;
  form.addEventListener("input", answer);
  form.addEventListener("submit", (event) => event.preventDefault());
  answer();
}

if (typeof document === "undefined") module.exports = { ranked, reason, passed };
else start();
