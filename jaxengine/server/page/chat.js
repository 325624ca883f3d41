// The conversation: what was said, the answer that streams in, and the controls around it.

const $ = (id) => document.getElementById(id);
const conversation = [];      // {role, content}
let running = null;           // the AbortController of the answer that streams

// --- settings ------------------------------------------------------------------------------------------------

const FIELDS = { system: "", temperature: "0.7", "max-tokens": "1024", plain: false };

function loadSettings() {
  let saved = {};
  try { saved = JSON.parse(localStorage.getItem("jaxengine.settings")) ?? {}; } catch { /* none, or not ours */ }
  for (const [id, initial] of Object.entries(FIELDS)) {
    $(id)[typeof initial === "boolean" ? "checked" : "value"] = saved[id] ?? initial;
    $(id).addEventListener("change", saveSettings);
  }
}

function saveSettings() {
  const values = Object.entries(FIELDS).map(([id, v]) => [id, typeof v === "boolean" ? $(id).checked : $(id).value]);
  try { localStorage.setItem("jaxengine.settings", JSON.stringify(Object.fromEntries(values))); } catch { /* full or off */ }
}

function requestBody() {
  const body = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("max-tokens").value !== "") body.max_tokens = Number($("max-tokens").value);
  if ($("plain").checked) return { ...body, prompt: conversation.map((m) => m.content).join("") };
  const system = $("system").value.trim();
  const messages = conversation.map(({ role, content }) => ({ role, content }));
  return { ...body, messages: system ? [{ role: "system", content: system }, ...messages] : messages };
}

// --- messages ------------------------------------------------------------------------------------------------

function addMessage(role) {
  const article = element("article", `message ${role}`);
  article.append(element("span", "hidden", role === "user" ? "You said:" : "The model answered:"));
  const text = element("div", "text");
  article.append(text);
  $("log").append(article);
  $("welcome").hidden = true;
  return { article, text };
}

function isAtEnd() {
  const scroll = $("scroll");
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
}

function toEnd() { $("scroll").scrollTop = $("scroll").scrollHeight; }

function showThought(view, thought) {
  if (!view.thought) {
    view.thought = element("details", "thought");
    view.thought.append(element("summary", "", "Thinking"), element("p", ""));
    view.text.before(view.thought);
  }
  view.thought.lastElementChild.textContent = thought;
}

function showMeta(view, answer) {
  const meta = element("div", "meta"), parts = [];
  const seconds = (performance.now() - (answer.firstAt ?? performance.now())) / 1000;
  if (answer.tokens) parts.push(`${answer.tokens} token${answer.tokens === 1 ? "" : "s"}`);
  if (answer.tokens > 1 && seconds > 0) parts.push(`${rate((answer.tokens - 1) / seconds)} tok/s`);
  if (answer.firstAt) parts.push(`first after ${((answer.firstAt - answer.askedAt) / 1000).toFixed(2)} s`);
  if (answer.reason === "length") parts.push("cut at the longest answer");
  if (answer.reason === "stopped") parts.push("stopped");
  if (!parts.length) return;
  meta.append(element("span", "", parts.join(" · ")));
  const copy = copyButton(() => answer.content);
  if (copy && answer.content) meta.append(copy);
  view.article.append(meta);
}

function showError(view, error) {
  const box = element("div", "error", error.message);
  box.setAttribute("role", "alert");
  const again = element("button", "small", "Try again");
  again.type = "button";
  again.addEventListener("click", () => {
    if (running) return;
    if (conversation.at(-1)?.role === "assistant") conversation.pop();      // what came before the error
    view.article.remove();
    answerNow();
  });
  box.append(again);
  view.article.append(box);
}

// --- one answer ----------------------------------------------------------------------------------------------

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

// A message may be sent while the model is loading: it is answered when that is done.
async function callOnceLoaded(path, options) {
  for (;;) {
    try {
      return await call(path, options);
    } catch (error) {
      if (error.status !== 503 || serverStatus !== "loading") throw error;
      await pause(1000, options.signal);
    }
  }
}

async function stream(answer, signal, changed) {
  const path = $("plain").checked ? "v1/completions" : "v1/chat/completions";
  const response = await callOnceLoaded(path, {
    method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(requestBody()),
  });
  for await (const event of events(response)) {
    const choice = event.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    const thought = choice?.delta?.reasoning_content ?? "";
    if (text || thought) answer.firstAt ??= performance.now();
    answer.content += text;
    answer.thought += thought;
    answer.reason = choice?.finish_reason ?? answer.reason;
    answer.tokens = event.usage?.completion_tokens ?? answer.tokens;
    changed();
  }
}

async function answerNow() {
  const view = addMessage("assistant"), controller = new AbortController();
  const answer = { content: "", thought: "", tokens: 0, reason: null, askedAt: performance.now(), firstAt: null };
  let frame = 0;
  const draw = () => {
    frame = 0;
    const follow = isAtEnd();
    if (answer.thought) showThought(view, answer.thought);
    showMarkdown(view.text, answer.content);
    if (follow) toEnd();
  };
  setRunning(controller, view);
  toEnd();
  let failure = null;
  try {
    await stream(answer, controller.signal, () => { frame ||= requestAnimationFrame(draw); });
  } catch (error) {
    if (error.name === "AbortError") answer.reason = "stopped";
    else failure = error;
  }
  cancelAnimationFrame(frame);
  draw();
  const follow = isAtEnd();
  setRunning(null, view);
  if (answer.content && view.article.isConnected) conversation.push({ role: "assistant", content: answer.content });
  showMeta(view, answer);
  if (failure) showError(view, failure);
  if (follow) toEnd();
  $("status").textContent = failure ? "" : answer.reason === "stopped" ? "Stopped." : "The answer is complete.";
}

function setRunning(controller, view) {
  const focused = document.activeElement;
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = Boolean(controller);
  $("log").setAttribute("aria-busy", String(Boolean(controller)));
  view.article.classList.toggle("live-text", Boolean(controller));
  if (focused === $("stop") || focused === $("send")) $("message").focus();
}

// --- controls ------------------------------------------------------------------------------------------------

function fitComposer() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
  $("send").disabled = box.value.trim() === "";
}

function send() {
  const content = $("message").value;
  if (running || content.trim() === "") return;
  $("message").value = "";
  fitComposer();
  if (conversation.at(-1)?.role === "user") conversation.pop();      // unanswered: templates want turns to alternate
  conversation.push({ role: "user", content });
  addMessage("user").text.textContent = content;
  answerNow();
}

function reset() {
  running?.abort();
  conversation.length = 0;
  $("log").replaceChildren();
  $("welcome").hidden = false;
  $("message").focus();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

async function loadModels() {
  const select = $("model");
  try {
    const { data } = await (await call("v1/models")).json();
    select.replaceChildren(...data.map(({ id }) => new Option(id, id)));
    select.disabled = data.length < 2;
    document.title = `${data[0].id} · jaxengine`;
  } catch (error) {
    select.replaceChildren(new Option(error.status === 401 ? "no key" : "not connected", ""));
    select.title = error.message;
  }
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("message").addEventListener("input", fitComposer);
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) running.abort();
});
$("stop").addEventListener("click", () => running?.abort());
$("reset").addEventListener("click", reset);
$("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(theme);
  try { localStorage.setItem("jaxengine.theme", theme); } catch { /* full or off */ }
});
$("open-settings").addEventListener("click", () => { $("forget-key").hidden = !storedKey(); $("settings").showModal(); });
$("forget-key").addEventListener("click", () => { forgetKey(); $("settings").close(); loadModels(); });
for (const starter of document.querySelectorAll(".starters button")) {
  starter.addEventListener("click", () => { $("message").value = starter.textContent; send(); $("message").focus(); });
}

const wantsDark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("jaxengine.theme"); } catch { /* off */ }
setTheme(chosen ?? (wantsDark.matches ? "dark" : "light"));
wantsDark.addEventListener("change", () => { if (!chosen) setTheme(wantsDark.matches ? "dark" : "light"); });

loadSettings();
loadModels().finally(watchLoad);
