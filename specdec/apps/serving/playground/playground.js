// The playground: it asks the server for one prompt twice, and shows each step's draft as it comes.
"use strict";

const at = (id) => document.getElementById(id);
const NUM_COLOURS = 6;
const MOST_SHOWN = 60; // candidates of a draft tree

// One of the two texts: what has come, and where it is shown.
class Column {
  constructor(name) {
    this.name = name;
    this.section = document.querySelector(`[data-column=${name}]`);
    this.title = this.section.querySelector("h2");
    this.figures = this.section.querySelector(".figures");
    this.output = this.section.querySelector(".text");
    this.output.addEventListener("keydown", (event) => this.move(event));
    this.output.addEventListener("focus", () => this.choose(this.chosen ?? 0));
    this.output.addEventListener("pointerover", (event) => {
      if (event.target.dataset.number) this.choose(Number(event.target.dataset.number));
    });
    this.clear();
  }

  clear() {
    this.output.replaceChildren();
    this.figures.replaceChildren();
    this.text = "";
    this.tokens = []; // each token's span, step and place in it
    this.steps = [];
    this.usage = null;
    this.chosen = null;
    this.began = null;
  }

  // Add a step's tokens.
  add(choice, step) {
    const text = choice.text ?? choice.delta?.content ?? "";
    this.began ??= performance.now();
    this.ended = performance.now();
    this.text += text;
    if (!step || !step.tokens.length) return;
    const number = this.steps.push(step) - 1;
    // A character that is split over tokens is shown with its step.
    const pieces = step.tokens.some((token) => token.includes("\ufffd")) ? [text] : step.tokens;
    pieces.forEach((piece, place) => {
      const span = document.createElement("span");
      span.className = `token step${number % NUM_COLOURS}${place ? "" : " first"}`;
      span.dataset.number = this.tokens.length;
      span.id = `${this.name}-${this.tokens.length}`;
      span.role = "option";
      span.textContent = piece;
      if (!piece.trim()) span.ariaLabel = piece.includes("\n") ? "line break" : "space"; // or a reader says nothing
      this.output.append(span);
      this.tokens.push({ span, step, number, place });
    });
    this.showFigures();
    if (isChosen()) return; // a token that somebody reads about stays where it is
    this.output.scrollTop = this.output.scrollHeight;
    drawTree(step);
  }

  get numTokens() {
    return this.usage?.completion_tokens ?? this.steps.reduce((sum, step) => sum + step.tokens.length, 0);
  }

  get perStep() {
    return this.steps.length ? this.numTokens / this.steps.length : 0;
  }

  // Tokens a second after the first step, which reads the prompt.
  get speed() {
    const later = this.numTokens - (this.steps[0]?.tokens.length ?? 0);
    return this.ended > this.began ? (1000 * later) / (this.ended - this.began) : 0;
  }

  showFigures() {
    const told = {
      tokens: this.numTokens, steps: this.steps.length,
      "tokens/step": this.perStep.toFixed(2), "tokens/s": this.speed.toFixed(1),
    };
    this.figures.replaceChildren(...Object.entries(told).map(([name, value]) => {
      const pair = document.createElement("div");
      const term = pair.appendChild(document.createElement("dt"));
      const figure = pair.appendChild(document.createElement("dd"));
      [term.textContent, figure.textContent] = [name, value];
      return pair;
    }));
  }

  move(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = { Home: 0, End: this.tokens.length - 1 }[event.key] ?? (by ? (this.chosen ?? -1) + by : null);
    if (to === null) return;
    event.preventDefault();
    this.choose(to);
    this.tokens[this.chosen]?.span.scrollIntoView({ block: "nearest" });
  }

  // Tell of one token's step.
  choose(number) {
    if (!this.tokens.length) return;
    document.querySelectorAll(".token.here").forEach((other) => {
      other.classList.remove("here");
      other.ariaSelected = null;
      other.parentElement.removeAttribute("aria-activedescendant");
    });
    this.chosen = Math.max(0, Math.min(number, this.tokens.length - 1));
    const token = this.tokens[this.chosen];
    token.span.classList.add("here");
    token.span.ariaSelected = "true";
    this.output.setAttribute("aria-activedescendant", token.span.id);
    at("told").textContent = tell(token);
    drawTree(token.step);
  }
}

const isChosen = () => document.querySelector(".token.here") !== null;
const quoted = (text) => `“${text.replaceAll("\n", "⏎")}”`;
const named = (node) => node.by.join(" and ") || "the strategy";

// Which strategy proposed a token, and what was rejected in its place.
function tell({ step, number, place }) {
  const path = step.nodes.flatMap((node, index) => (node.is_accepted ? [index] : []));
  const own = step.nodes[path[place + 1]];
  const others = step.nodes.filter((node) => node.parent === path[place] && !node.is_accepted);
  const origin = own ? `proposed by ${named(own)}, and accepted` : "the model's own, after the accepted tokens";
  const rejected = others.map((node) => `${quoted(node.text)} (${named(node)})`).join(", ");
  const others_ = step.num_others ? ` ${step.num_others} further nodes were not candidates.` : "";
  const token = step.tokens[place] ?? "";
  return `${quoted(token)}, step ${number + 1} (${step.tokens.length} ${step.tokens.length === 1 ? "token" : "tokens"} in ` +
    `${(1000 * step.seconds).toFixed(0)} ms): ${origin}.${rejected ? ` Rejected in its place: ${rejected}.` : ""}${others_}`;
}

// The draft of a step: depth from left to right, siblings below one another.
function drawTree(step) {
  const nodes = step.nodes.slice(0, MOST_SHOWN);
  const children = nodes.map(() => []);
  nodes.forEach((node, index) => node.parent === null || children[node.parent]?.push(index));
  const depth = [], row = [];
  let rows = 0;
  const lay = (index, level) => {
    depth[index] = level;
    row[index] = rows;
    children[index].forEach((child, place) => {
      if (place) rows += 1;
      lay(child, level + 1);
    });
  };
  lay(0, 0);
  const wide = 118, high = 34, box = 94;
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    return element;
  };
  const size = { width: (Math.max(...depth) + 1) * wide, height: (rows + 1) * high };
  const accepted = step.nodes.filter((node) => node.is_accepted).length - 1;
  const label = `A draft of ${step.nodes.length - 1} candidates, of which ${accepted} were accepted`;
  const svg = make("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": label });
  nodes.forEach((node, index) => {
    if (node.parent === null) return;
    const [x, y] = [depth[index] * wide, row[index] * high + 15];
    const [fromX, fromY] = [depth[node.parent] * wide + box, row[node.parent] * high + 15];
    const d = `M${fromX} ${fromY} C${fromX + 12} ${fromY} ${x - 12} ${y} ${x} ${y}`;
    svg.append(make("path", node.is_accepted ? { d, class: "accepted" } : { d }));
  });
  nodes.forEach((node, index) => {
    const group = make("g", { class: node.is_accepted ? "node accepted" : "node" });
    const [x, y] = [depth[index] * wide, row[index] * high];
    group.append(make("rect", { x: x + 2, y: y + 2, width: box - 4, height: 26, rx: 4 }));
    const text = make("text", { x: x + 8, y: y + 19 });
    const shown = node.text.replaceAll("\n", "⏎").replaceAll(" ", "␣");
    text.textContent = shown.length > 10 ? `${shown.slice(0, 9)}…` : shown;
    const title = make("title", {});
    title.textContent = index ? `${quoted(node.text)}: ${named(node)}` : `${quoted(node.text)}: the token before the draft`;
    group.append(text, title);
    svg.append(group);
  });
  at("tree").replaceChildren(svg);
}

// The events of a streamed answer.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

const headers = () => {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
};

let model = "";
let running = null;
const plain = new Column("plain");
const drafted = new Column("drafted");

async function refused(response) {
  if (response.status === 401) at("key-field").hidden = false;
  const told = await response.json().catch(() => null);
  return new Error(told?.error?.message ?? `the server answered ${response.status}`);
}

async function decode(column, proposer, signal) {
  const prompt = at("prompt").value;
  const isChat = at("chat").checked;
  const body = {
    model, proposer, stream: true, stream_options: { include_usage: true }, include_steps: true,
    temperature: Number(at("temperature").value), seed: Number(at("seed").value), max_tokens: Number(at("length").value),
    ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
  };
  const path = isChat ? "v1/chat/completions" : "v1/completions";
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw await refused(response);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) column.add(choice, event.step);
    if (event.usage) column.usage = event.usage;
  }
  column.showFigures();
}

function say(text, kind = "") {
  at("verdict").textContent = text;
  at("verdict").className = kind;
}

function compare() {
  if (plain.text === drafted.text) {
    say(`same text ✓ – ${plain.numTokens} tokens in ${drafted.steps.length} steps instead of ${plain.steps.length}, ` +
      `${drafted.perStep.toFixed(2)} tokens per step`, "same");
    return;
  }
  let place = 0;
  while (plain.text[place] === drafted.text[place]) place += 1;
  say(`the texts differ from character ${place + 1} on`, "other");
}

// On a narrow page the form fills the screen, and a keyboard perhaps the rest of it.
const isNarrow = () => matchMedia("(max-width: 44rem)").matches;

function show(column) {
  if (!isNarrow()) return;
  if (document.activeElement === at("prompt")) at("prompt").blur();
  column.section.scrollIntoView({ block: "start" });
}

async function run() {
  if (running) return;
  running = new AbortController();
  [at("run").disabled, at("stop").disabled] = [true, false];
  const strategy = at("strategy").value.trim() || "auto";
  plain.clear();
  drafted.clear();
  drafted.title.textContent = strategy;
  at("tree").replaceChildren();
  try {
    if (!model) await greet();
    for (const [column, proposer, doing] of [[plain, "off", "plain decoding"], [drafted, strategy, strategy]]) {
      say(`${doing}…`); // one after the other: at once they would slow each other
      show(column);
      await decode(column, proposer, running.signal);
    }
    compare();
  } catch (error) {
    if (running.signal.aborted) say("stopped");
    else say(error.message, "other");
    running.abort();
  } finally {
    running = null;
    [at("run").disabled, at("stop").disabled] = [false, true];
  }
}

async function greet() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await refused(response);
  const [told] = (await response.json()).data;
  model = told.id;
  at("model").textContent = `Model: ${model}.`;
  at("how").hidden = !told.has_chat_template;
  at("chat").checked = told.has_chat_template;
  labelPrompt();
  at("strategies").replaceChildren(...told.strategies.map((name) => new Option(name, name)));
}

function labelPrompt() {
  at("prompt-label").textContent = at("chat").checked ? "Message" : "Prompt";
}

at("chat").addEventListener("change", labelPrompt);
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
at("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
});
greet().catch((error) => say(error.message, "other"));
