// The strip that shows the server's load, once a second while the page is visible.

const POINTS = 60;
const speeds = [];
let lastSnapshot = null;
let serverStatus = "";

function show(id, text) { document.getElementById(id).textContent = text; }

function rate(value) { return value >= 100 ? value.toFixed(0) : value.toFixed(1); }

function drawSpark() {
  const top = Math.max(...speeds, 1);
  const points = speeds.map((v, i) => `${POINTS - speeds.length + i + 0.5},${(15 - 14 * v / top).toFixed(2)}`);
  document.querySelector("#spark polyline").setAttribute("points", points.join(" "));
}

const STATES = {
  loading: "The model is loading…", draining: "The server is shutting down.", stuck: "The engine makes no progress.",
  dead: "The engine has failed.",
};

function showSnapshot(now) {
  serverStatus = now.status;
  const compiling = now.num_compiling ? `Still compiling (${now.num_compiling} left): an answer may pause.` : "";
  show("state", STATES[now.status] ?? compiling);
  if (now.generation_tokens === undefined) return;      // still loading
  const seconds = lastSnapshot ? now.time - lastSnapshot.time : 0;
  if (seconds > 0) {
    const speed = Math.max(0, (now.generation_tokens - lastSnapshot.generation_tokens) / seconds);
    speeds.push(speed);
    if (speeds.length > POINTS) speeds.shift();
    show("speed", rate(speed));
    if (speeds.length > 1) drawSpark();
  }
  lastSnapshot = now;
  show("running", `${now.num_requests_running}/${now.max_num_seqs}`);
  show("waiting", String(now.num_requests_waiting));
  const percent = 100 * now.kv_cache_usage;
  show("usage", `${percent > 0 && percent < 10 ? percent.toFixed(1) : percent.toFixed(0)} %`);
  document.getElementById("usage-bar").style.width = `${percent}%`;
}

async function watchLoad() {
  const strip = document.getElementById("live");
  for (;;) {
    if (document.visibilityState === "visible" && !asking) {
      try {
        const headers = storedKey() ? { Authorization: `Bearer ${storedKey()}` } : {};
        const response = await fetch("stats", { headers, cache: "no-store" });
        strip.classList.toggle("lost", !response.ok);
        if (response.ok) showSnapshot(await response.json());
        else if (response.status === 404) { strip.hidden = true; return; }
        else lastSnapshot = null;
      } catch {
        strip.classList.add("lost");
        lastSnapshot = null;
        show("speed", "–");
        show("state", "No connection to the server.");
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
