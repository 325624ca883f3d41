// Model output as DOM nodes. Text only ever becomes text nodes: nothing in it can turn into markup or a request.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const ITEM = /^\s{0,3}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^#{1,6}\s+(.*)$/;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;

function closes(line, fence) { return line.startsWith(fence) && line === fence[0].repeat(line.length); }

// Blocks in order, of the kinds code, list, heading and text. Time grows linearly with the text.
function splitBlocks(text) {
  const blocks = [];
  let open = null;
  for (const line of text.split("\n")) {
    if (open?.kind === "code") {
      if (closes(line.trim(), open.fence)) open = null;
      else open.lines.push(line);
      continue;
    }
    const fence = FENCE.exec(line), item = ITEM.exec(line), heading = HEADING.exec(line);
    if (fence) blocks.push(open = { kind: "code", lines: [], fence: fence[1], language: fence[2] });
    else if (heading) { blocks.push({ kind: "heading", text: heading[1] }); open = null; }
    else if (item) {
      const ordered = item[1] !== undefined;
      if (open?.kind !== "list" || open.ordered !== ordered) {
        blocks.push(open = { kind: "list", ordered, start: Number(item[1] ?? 1), items: [] });
      }
      open.items.push(item[2]);
    } else if (line.trim() === "") { if (open?.kind !== "list") open = null; }
    else if (open?.kind === "list" && /^\s/.test(line)) open.items[open.items.length - 1] += "\n" + line.trim();
    else if (open?.kind === "text") open.text += "\n" + line;
    else blocks.push(open = { kind: "text", text: line });
  }
  return blocks;
}

function fillInline(node, text) {
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    node.append(text.slice(at, match.index));
    const part = document.createElement(match[1] !== undefined ? "code" : "strong");
    part.textContent = match[1] ?? match[2];
    node.append(part);
    at = match.index + match[0].length;
  }
  node.append(text.slice(at));
  return node;
}

function codeBlock(block) {
  const figure = element("figure", "block"), caption = element("figcaption", "", block.language || "code");
  const code = element("code", "", block.lines.join("\n")), pre = element("pre", "");
  pre.tabIndex = 0;      // a long line can be scrolled with the keyboard
  pre.append(code);
  const copy = copyButton(() => code.textContent);
  if (copy) caption.append(copy);
  figure.append(caption, pre);
  return figure;
}

function blockNode(block) {
  if (block.kind === "code") return codeBlock(block);
  if (block.kind === "heading") return fillInline(element("h3", ""), block.text);
  if (block.kind === "text") return fillInline(element("p", ""), block.text);
  const list = element(block.ordered ? "ol" : "ul", "");
  if (block.ordered) list.start = block.start;
  list.append(...block.items.map((item) => fillInline(element("li", ""), item)));
  return list;
}

// Shows `text` in `node`, making anew only the blocks that changed: while an answer streams, the last one.
function showMarkdown(node, text) {
  const keys = node.blockKeys ?? [];
  const blocks = splitBlocks(text);
  node.blockKeys = blocks.map((block) => JSON.stringify(block));
  node.blockKeys.forEach((key, i) => {
    if (key === keys[i]) return;
    const fresh = blockNode(blocks[i]);
    if (node.children[i]) node.children[i].replaceWith(fresh);
    else node.append(fresh);
  });
  while (node.children.length > blocks.length) node.lastElementChild.remove();
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// A button that copies what `read()` returns; null where the browser has no clipboard (plain HTTP from afar).
function copyButton(read) {
  if (!navigator.clipboard) return null;
  const button = element("button", "small", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(read());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}
