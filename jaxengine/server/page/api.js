// Talks to the server: the key, errors as sentences, server-sent events.

const KEY = "jaxengine.key";
const keyDialog = document.getElementById("key-dialog");
const keyInput = document.getElementById("key");
let asking = null;      // the promise of a key that the user is being asked for

class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function storedKey() { return sessionStorage.getItem(KEY); }
function forgetKey() { sessionStorage.removeItem(KEY); }

// Resolves once the user gave a key; rejects when they would not. Many may wait for the same answer.
function askForKey() {
  asking ??= new Promise((resolve, reject) => {
    const why = document.getElementById("key-why");
    if (storedKey()) {
      why.textContent = "The server did not accept that key.";
      why.classList.add("wrong");
    }
    const done = (settle) => { asking = null; keyDialog.onclose = null; keyDialog.close(); settle(); };
    const refuse = () => done(() => reject(new ApiError("This server needs an API key.", 401)));
    document.getElementById("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, keyInput.value);
      done(resolve);
    };
    document.getElementById("key-cancel").onclick = refuse;
    keyDialog.onclose = refuse;      // Esc
    keyInput.value = "";
    keyDialog.showModal();
    keyInput.focus();
  });
  return asking;
}

async function call(path, options = {}) {
  for (;;) {
    const key = storedKey();
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached. Is it still running?");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await readError(response);
    if (key !== storedKey()) continue;      // another request has got a key meanwhile
    await askForKey();
  }
}

async function readError(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* not our error shape: something between us and the server */ }
  const wait = response.headers.get("Retry-After");
  if (wait) message = `${message.replace(/[.]?$/, ".")} Try again in ${wait} s.`;
  return new ApiError(message, response.status);
}

// The JSON of each event, up to [DONE]. An error inside the stream is thrown, and so is an early end.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError("The answer broke off: the server closed the connection.");
    const parts = (rest + value.replaceAll("\r", "")).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message || "The server failed.");
      yield event;
    }
  }
}
