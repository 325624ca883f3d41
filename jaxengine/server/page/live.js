// The strip that shows the server's load, once a second while the page is visible.

const POINTS = 60;
const speeds = [];
let lastSnapshot = null;

function show(id, text) { document.getElementById(id).textContent = text; }

function drawSpark() {
  const top = Math.max(...speeds, 1);
  const points = speeds.map((v, i) => `${POINTS - speeds.length + i + 0.5},${(15 - 14 * v / top).toFixed(2)}`);
  document.querySelector("#spark polyline").setAttribute("points", points.join(" "));
}

function showSnapshot(now) {
  const seconds = lastSnapshot ? now.time - lastSnapshot.time : 0;
  if (seconds > 0) {
    const speed = Math.max(0, (now.generation_tokens - lastSnapshot.generation_tokens) / seconds);
    speeds.push(speed);
    if (speeds.length > POINTS) speeds.shift();
    show("speed", speed >= 100 ? speed.toFixed(0) : speed.toFixed(1));
    drawSpark();
  }
  lastSnapshot = now;
  show("running", `${now.num_requests_running} of ${now.max_num_seqs}`);
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
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
