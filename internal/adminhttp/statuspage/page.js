"use strict";
// All that comes from outside becomes text (textContent), never markup: the policy of the page forbids the rest.
const id = (name) => document.getElementById(name);
const pollEvery = 2000, keyEvery = 3000, actsEvery = 5000, rolloutsEvery = 10000; // ms
const firstEventMax = 12000, eventMax = 40000; // ms of silence until a stream is given up for polling
const pollsMax = 15; // then the stream is tried again
const bufferMax = 16 << 20; // bytes of an event
const summaryMax = 5; // reasons of dead letters that are listed
const historyMax = 200, actsMax = 50, rolloutsMax = 10, reasonsMax = 4; // rows that are shown

const wrongToken = "This is not the admin token of this router.";
let token = "", caller = { may_act: false, named: false };
let heard = Date.now(), attempt = new AbortController();

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// ask requests a path of this host, with the token if there is one.
function ask(path, options = {}) {
	const headers = token ? { Authorization: "Bearer " + token } : {};
	return fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", headers, ...options });
}

// answer returns the answer to a request. An error of an act that has done a part has what it did, as done.
async function answer(path, options) {
	const response = await ask(path, options);
	if (!response.ok) {
		const says = (await response.text()).trim();
		const done = response.headers.get("Content-Type") === "application/json" ? JSON.parse(says) : null;
		const refused = new Error((done?.error ?? says).slice(0, 400) || "status " + response.status);
		refused.status = response.status;
		refused.done = done?.says ? done : null;
		throw refused;
	}
	return response.json();
}

const faultOf = (error) => error.status === 401 ? "This needs the admin token." : error.message;

// ── elements ──

function text(node, value) {
	value = String(value ?? "");
	if (node.textContent !== value) node.textContent = value;
}

function name(node, className) {
	if (node.className !== className) node.className = className;
}

function element(tag, parent, className = "") {
	const node = document.createElement(tag);
	if (className) node.className = className;
	if (parent) parent.append(node);
	return node;
}

// children makes the children of parent those of items, by key, and changes only what differs: focus and selection stay.
function children(parent, items, keyOf, make, fill) {
	const old = new Map();
	for (const node of parent.children) old.set(node.dataset.key, node);
	const used = new Map();
	items.forEach((item, i) => {
		let key = String(keyOf(item, i));
		const times = used.get(key) ?? 0;
		used.set(key, times + 1);
		if (times) key += "#" + times;
		let node = old.get(key);
		old.delete(key);
		if (!node) {
			node = make(item);
			node.dataset.key = key;
		}
		fill(node, item);
		if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null);
	});
	for (const node of old.values()) node.remove();
}

// table fills the body of a table. columns are functions of an item: a text, or what fills the cell itself.
function table(body, items, keyOf, columns) {
	const heads = body.closest("table").tHead.rows[0].cells;
	children(body, items, keyOf, () => {
		const row = element("tr");
		columns.forEach((_, i) => {
			const cell = element(i ? "td" : "th", row, heads[i].classList.contains("n") ? "n" : "");
			if (i) cell.dataset.label = heads[i].textContent;
			else cell.scope = "row";
		});
		return row;
	}, (row, item) => columns.forEach((column, i) => {
		const value = column(item, row.cells[i]);
		if (value !== undefined) text(row.cells[i], value);
	}));
}

// part returns the child of a cell with that place, and makes it the first time.
function part(cell, i, tag, className = "") {
	const node = cell.children[i] ?? element(tag, cell, className);
	return node;
}

function stateCell(item, cell) {
	const state = part(cell, 0, "b");
	text(state, item.state);
	name(state, item.class);
	text(part(cell, 1, "span", "why"), item.why);
}

function keyCell(item, cell) {
	const button = part(cell, 0, "button", "key mono");
	button.type = "button";
	text(button, item.label);
	button.onclick = () => openKey(item, button);
}

function colored(label, color, cell, className = "") {
	const dot = part(cell, 0, "span");
	name(dot, "dot " + className);
	if (dot.style.getPropertyValue("--c") !== color) dot.style.setProperty("--c", color);
	text(part(cell, 1, "span"), label);
}

// ── the parts of a snapshot ──

const shows = {
	head(head) {
		text(id("group"), head.group || "Ringfence");
		text(id("seen-by"), "as " + head.member + " sees it, at " + head.position + " of the control log, epoch " + head.epoch);
	},
	problems(problems) {
		children(id("problems"), problems.rows, (p) => p.title + " " + (p.key?.hash ?? p.text.slice(0, 60)), (p) => {
			const item = element("li");
			element("b", item);
			if (p.key) {
				item.append(" ");
				element("button", item, "key mono").type = "button";
			}
			element("p", item);
			return item;
		}, (item, p) => {
			name(item, p.class);
			text(item.querySelector("b"), p.title);
			text(item.querySelector("p"), p.text);
			if (p.key) {
				const button = item.querySelector("button");
				text(button, p.key.label);
				button.onclick = () => openKey(p.key, button);
			}
		});
		const n = problems.rows.length + problems.more;
		const says = n === 0 ? "Nothing is wrong." : n === 1 ? "1 problem" : n + " problems";
		text(id("problems-note"), n === 0 ? says : problems.more ? "The " + problems.rows.length + " worst of " + n + " problems." : "");
		text(id("summary"), says);
		document.title = (n ? says + " · " : "") + id("group").textContent + " · Ringfence";
	},
	tiles(tiles) {
		children(id("tiles"), tiles, (t) => t.title, () => {
			const item = element("li");
			element("span", item);
			element("b", item);
			element("span", item, "soft");
			return item;
		}, (item, t) => {
			text(item.children[0], t.title);
			text(item.children[1], t.value);
			name(item.children[1], t.class);
			text(item.children[2], t.note);
		});
	},
	worst(keys) {
		table(id("worst"), keys.rows, (k) => k.hash + k.owner, [keyCell, stateCell, (k) => k.partition, (k) => k.owner, (k) => k.age, (k) => k.failures, (k) => k.behind]);
		text(id("worst-note"), keys.note);
	},
	failing(keys) {
		table(id("failing"), keys.rows, (k) => k.hash + k.owner, [keyCell, (k, cell) => stateCell(k, cell), (k) => k.owner, (k) => k.failures, (k) => k.behind]);
		text(id("failing-note"), keys.note);
	},
	hot(keys) {
		table(id("hot"), keys.rows, (k) => k.hash + k.owner, [keyCell, (k) => k.owner, (k) => k.rate, (k) => k.busy, (k) => k.forecast]);
		text(id("hot-note"), keys.note);
	},
	lane(lane) {
		table(id("lane"), lane.rows, (m) => m.name, [(m, cell) => colored(m.name, m.color, cell), (m) => m.waiting, (m) => m.running, (m) => m.reserved, (m) => m.refused, (m, cell) => {
			const says = part(cell, 0, "span");
			text(says, m.bound);
			name(says, m.class);
		}]);
		text(id("lane-note"), lane.note);
	},
	schedules(schedules) {
		table(id("schedules"), schedules.rows, (s) => s.name, [(s) => s.name, (s) => s.times, (s, cell) => colored(s.owner, s.color, cell), (s) => s.last, (s) => s.next, (s) => s.covered, (s) => s.dropped, (s, cell) => {
			const says = part(cell, 0, "span");
			text(says, s.state);
			name(says, s.class);
		}]);
		text(id("schedules-note"), schedules.note);
	},
	members(members) {
		table(id("members"), members.rows, (m) => m.name + m.incarnation, [
			(m, cell) => colored(m.name, m.color, cell), stateCell, (m) => m.partitions, (m) => m.lease, (m) => m.workers, (m) => m.rate,
			(m) => m.running, (m) => m.unsettled, (m) => m.oldest, (m) => m.position, (m) => m.version,
		]);
		text(id("members-note"), members.note);
	},
	waits(waits) {
		id("waits-table").hidden = waits.length === 0;
		table(id("waits"), waits, (w) => w.owner + w.for, [(w, cell) => colored(w.owner, w.color, cell), (w) => w.count, (w) => w.for, (w) => w.until]);
	},
	ring(ring) {
		drawn = ring;
		drawRing();
		children(id("legend"), ring.areas, (a) => a.owner + " " + a.state, () => element("li"), (item, a) => colored(a.owner + ": " + a.count + " " + a.state, a.color, item, a.class));
		text(id("ring-note"), ring.partitions ? "" : "There is no table yet, so no member owns a partition.");
	},
	records(records) {
		table(id("records"), records, (r, i) => r.name + i, [
			(r) => r.name, (r, cell) => stateCell({ state: r.verdict, class: r.class, why: r.reasons.join(" ") }, cell), (r) => r.for, (r) => r.overlaps, (r) => r.order, ...[0, 1, 2, 3, 4].map((i) => (r) => r.counts[i]),
		]);
	},
	protections(protections) {
		table(id("protections"), protections, (p, i) => i, [(p) => p.members, (p) => p.listeners, (p, cell) => {
			const says = part(cell, 0, "b");
			text(says, p.exposed || "none");
			name(says, p.exposed ? "bad" : "");
		}]);
	},
	caller(now) {
		const gained = now.may_act && !caller.may_act;
		caller = now;
		text(id("token-open"), token ? "Change the token" : "Admin token");
		if (gained) showActs();
		else if (!now.may_act) table(id("acts"), [], () => "", [0, 0, 0, 0, 0].map(() => () => ""));
		if (!now.may_act) text(id("acts-note"), "The admin token shows who holds which keys, and lets you hold, release, park and unpark them.");
		buttons();
		letterButtons();
	},
};

// apply shows the parts of a snapshot that have come.
function apply(snapshot) {
	const begun = performance.now();
	for (const [which, data] of Object.entries(snapshot)) if (Object.hasOwn(shows, which)) shows[which](data);
	heard = Date.now();
	id("cut").hidden = true;
	const wrong = token !== "" && !caller.may_act; // a router that shows its data to everybody here does not refuse a wrong token
	if (wrong) text(id("locked-text"), wrongToken);
	id("locked").hidden = !wrong;
	performance.measure("refresh", { start: begun });
}

let drawn = { map: [], areas: [] }, drawnColumns = 0;
function drawRing() {
	const svg = id("ring"), width = svg.parentElement.clientWidth, columns = width < 600 ? 64 : width < 1600 ? 117 : 186;
	const rows = Math.ceil(drawn.map.length / columns), paths = drawn.areas.map(() => []);
	drawn.map.forEach((area, i) => paths[area].push("M" + (i % columns) + " " + Math.floor(i / columns) + "h.84v.84h-.84z"));
	svg.setAttribute("viewBox", "0 0 " + columns + " " + Math.max(rows, 1));
	svg.style.aspectRatio = columns + " / " + Math.max(rows, 1);
	drawnColumns = columns;
	const namespace = "http://www.w3.org/2000/svg";
	const nodes = drawn.areas.map((area, i) => {
		const path = document.createElementNS(namespace, "path"), title = document.createElementNS(namespace, "title");
		path.setAttribute("class", area.class);
		path.setAttribute("fill", area.color);
		path.setAttribute("d", paths[i].join(""));
		title.textContent = area.owner + ": " + area.state;
		path.append(title);
		return path;
	});
	svg.replaceChildren(...nodes);
	svg.hidden = drawn.map.length === 0;
}
addEventListener("resize", () => {
	const width = id("ring").parentElement.clientWidth;
	if (drawnColumns !== (width < 600 ? 64 : width < 1600 ? 117 : 186)) drawRing();
});

// ── one key ──

let shownKey = null, opener = null, keyTurn = 0, keyTimer = 0;

function encodedKey(key) {
	if (!key.key_base64) return encodeURIComponent(key.key);
	return Array.from(atob(key.key_base64), (c) => "%" + c.charCodeAt(0).toString(16).padStart(2, "0")).join("");
}

const known = (key) => key.key !== undefined || key.key_base64 !== undefined;

function openKey(key, from) {
	shownKey = key;
	shownEvent = ""; // that of the key before is not an event of this one
	opener = from;
	text(id("key-label"), key.label);
	text(id("key-fault"), "");
	id("key-facts").replaceChildren();
	id("history").replaceChildren();
	text(id("history-note"), "Asking all members…");
	id("key").hidden = false;
	buttons();
	id("h-key").focus({ preventScroll: true });
	id("key").scrollIntoView({ block: "start" });
	refreshKey();
}

function closeKey() {
	shownKey = null;
	id("key").hidden = true;
	clearTimeout(keyTimer);
	if (opener?.isConnected) opener.focus();
	else id("search-text").focus();
}

function buttons() {
	for (const which of ["hold", "release", "skip", "park", "unpark", "letters", "events"]) {
		const button = id("key-" + which);
		button.disabled = !caller.may_act || !shownKey || !known(shownKey) || which === "skip" && !shownEvent;
		button.title = !caller.may_act ? "This needs the admin token" : !shownKey || !known(shownKey) ? "To act on this key, search for it by its name" : button.disabled ? "The key has no event" : "";
	}
}

async function refreshKey() {
	const turn = ++keyTurn, key = shownKey;
	clearTimeout(keyTimer);
	if (!key) return;
	if (document.hidden) {
		keyTimer = setTimeout(refreshKey, keyEvery);
		return;
	}
	const faults = [];
	const get = async (path, show) => {
		try {
			const told = await answer(path);
			if (turn === keyTurn) show(told);
		} catch (error) {
			faults.push(faultOf(error));
		}
	};
	let query;
	try {
		query = known(key) ? "key=" + encodedKey(key) : "hash=" + encodeURIComponent(key.hash);
	} catch (error) {
		faults.push("This is no " + (key.key_base64 ? "base64" : "text") + ".");
	}
	if (query) {
		if (known(key)) await get("/v1/keys?" + query, showFacts);
		await get("/v1/history?" + query, (h) => showHistory(h, known(key)));
	}
	if (turn !== keyTurn) return;
	text(id("key-fault"), [...new Set(faults)].join(" "));
	if (faults.length) text(id("history-note"), "");
	if (!faults.length) keyTimer = setTimeout(refreshKey, keyEvery);
}

function seconds(s) {
	if (s < 0.001) return "0 s";
	if (s < 1) return Math.round(1000 * s) + " ms";
	if (s < 60) return s.toFixed(1) + " s";
	const m = Math.floor(s / 60);
	return m < 60 ? m + "m" + Math.floor(s % 60) + "s" : Math.floor(m / 60) + "h" + (m % 60) + "m";
}

const moment = (time) => time.slice(0, 19).replace("T", " ");

function facts(k) {
	const all = ["Partition " + k.partition + " of " + (k.owner || "nobody") + ", fencing token " + k.token];
	for (const at of k.at ?? []) {
		if (at.error) {
			all.push(at.member + " does not answer: " + at.error);
			continue;
		}
		for (const says of at.says ?? []) all.push(at.member + ": " + says);
	}
	return all;
}

function skipWords(s) {
	if (s.end === "done") return "was done by the handler that ran";
	if (s.end === "dead_letter") return "went to the dead letter topic";
	return "in effect until " + moment(s.until) + " UTC";
}

// shownEvent is the event of the shown key that runs or is first, which its owner has told last; "" for none.
let shownEvent = "";

function showFacts(k) {
	shownEvent = (k.at ?? []).find((at) => at.event)?.event ?? "";
	buttons();
	children(id("key-facts"), facts(k), (_, i) => i, () => element("li"), text);
}

function stepWords(s) {
	if (s.step === "received" && s.to) return "for " + s.to;
	if (s.step === "moved") return s.event ? "to the next owner" : "from " + (s.from || "nobody") + " to " + s.to + ", token " + s.token;
	return s.result ? s.result + " after " + seconds(s.seconds ?? 0) : "";
}

function shortFence(fence) {
	const parts = /^0*(\d+)\.0*(\d+)$/.exec(fence ?? "");
	return parts ? parts[1] + "." + parts[2] : fence;
}

function showHistory(h, named) {
	if (!named) children(id("key-facts"), ["Partition " + h.partition + " of " + (h.owner || "nobody") + ", fencing token " + h.token, "To act on this key, search for it by its name."], (_, i) => i, () => element("li"), text);
	const steps = h.steps.slice(-historyMax);
	table(id("history"), steps, (s) => s.at + s.member + s.step + (s.event ?? ""), [
		(s) => s.at.slice(11, 23), (s) => s.member, (s) => s.step, (s) => s.event ?? "", (s) => s.attempt ?? "", (s) => shortFence(s.fence), stepWords,
	]);
	const older = h.cut + h.steps.length - steps.length;
	const says = [];
	if (!steps.length) says.push("No member remembers an event of this key.");
	if (older) says.push("The " + steps.length + " newest of " + (older + steps.length) + " steps: `router history` lists up to 1,000.");
	if (h.reach.length) says.push("Remembered by " + h.reach.slice(0, 5).map((r) => r.member + " since " + moment(r.since)).join(", ") + (h.reach.length > 5 ? " and " + (h.reach.length - 5) + " more" : "") + ".");
	if (h.silent?.length) says.push("Without " + h.silent.join("; ") + ".");
	text(id("history-note"), says.join(" "));
}

// ── acts ──

let actsTimer = 0;
async function showActs() {
	clearTimeout(actsTimer);
	if (!caller.may_act) return;
	try {
		const told = await answer("/v1/acts");
		const acts = told.acts ?? [];
		table(id("acts"), acts.slice(0, actsMax), (a) => a.act + a.at + (a.key ?? a.key_base64), [
			(a, cell) => keyCell(refOf(a), cell),
			(a, cell) => stateCell(actState(a), cell),
			(a) => a.by, (a) => a.reason,
			(a, cell) => {
				const button = part(cell, 0, "button");
				button.type = "button";
				const ends = a.act === "park" ? "unpark" : "release";
				button.hidden = !a.active || a.act !== "hold" && a.act !== "park";
				text(button, ends === "unpark" ? "Unpark…" : "Release…");
				button.setAttribute("aria-label", (ends === "unpark" ? "Unpark " : "Release ") + refOf(a).label);
				button.onclick = () => openAct(ends, refOf(a));
			},
		]);
		const note = acts.length === 0 ? "Nobody has held, released or parked a key, or skipped an event." : acts.length > actsMax ? "The " + actsMax + " newest of " + acts.length + ": `router acts` lists all." : "";
		text(id("acts-note"), told.error ? "This member cannot use the acts topic now: " + told.error : note);
	} catch (error) {
		text(id("acts-note"), error.message);
	}
	actsTimer = setTimeout(() => !document.hidden && showActs(), actsEvery);
}

function actState(a) {
	if (a.act === "skip") return { state: "skip", class: a.active && !a.end ? "busy" : "", why: "event " + a.event + ": " + skipWords(a) };
	if (a.act === "unpark" && a.end_words) return { state: "unpark", class: "", why: a.end_words };
	return { state: a.active ? { hold: "held", park: "parked", unpark: "coming back" }[a.act] ?? a.act : a.act, class: a.active ? "busy" : "", why: a.active ? "until " + moment(a.until) + " UTC" : moment(a.at) + " UTC" };
}

const printable = (s) => s.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");

function refOf(a) {
	const label = a.key_base64 ? "base64:" + a.key_base64 : printable(a.key ?? "");
	return { label: label.length > 80 ? label.slice(0, 80) + "…" : label, key: a.key_base64 ? undefined : a.key ?? "", key_base64: a.key_base64 };
}

const acts = {
	hold: { title: "Hold this key?", does: "Hold the key", times: [["10m", "10 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["4h", "4 hours"], ["24h", "24 hours"]], preset: "1h", says: "Its events wait, in their order, until the key is released or the time is up. A running event finishes. Other keys are not affected." },
	release: { title: "Release this key?", does: "Release the key", says: "Its events run again, in their order." },
	park: { title: "Park this key?", does: "Park the key", times: [["1h", "1 hour"], ["24h", "24 hours"], ["168h", "7 days"], ["720h", "30 days"]], preset: "168h", says: "Its events go to the parking topic, in their order, until it is unparked; they no longer count as open events. If the time is up before that, they remain in the parking topic, and later events run before them." },
	unpark: { title: "Unpark this key?", does: "Unpark the key", says: "Its events come back from the parking topic, in their order, and run before all later ones." },
	replay: { title: "Replay these letters?", does: "Replay", says: "Each becomes a new event of its topic, behind all events that the topic has now, and is removed from the dead letters." },
	purge: { title: "Purge these letters?", does: "Purge permanently", says: "They are permanently removed from the dead letters." },
	events: { title: "Replay events of this key?", does: "Replay", during: "Published in", times: [["1", "the last hour"], ["6", "the last 6 hours"], ["24", "the last 24 hours"], ["168", "the last 7 days"]], preset: "1", says: "Each becomes a new event of its topic, behind all events that the topic has now: the handler sees it after newer events of the key. `router replay` takes more keys and more events." },
	skip: { title: "Skip this event?", does: "Skip the event", says: "It goes to the dead letter topic. A running handler is cancelled; if it finishes the event anyway, the event counts as done. Later events of the key run as usual." },
};
const outcomes = {
	held: "The key is held.", renewed: "The key is held.", released: "The key is released.", not_held: "The key was not held; nothing has changed.",
	skipping: "The event is skipped.", already: "This was already requested; nothing has changed.",
	parking: "The key is parked.", unparking: "The events of the key are coming back.",
};
let acting = null;

function openAct(act, key, letters = null) {
	acting = { act, key, letters, event: act === "skip" ? shownEvent : "", until: new Date() };
	text(id("h-act"), acts[act].title);
	text(id("act-label"), acting.event ? key.label + ", event " + acting.event : key.label);
	text(id("act-says"), acts[act].says);
	text(id("act-do"), acts[act].does);
	text(id("act-fault"), "");
	id("act-reason").value = "";
	id("act-for-row").hidden = !acts[act].times;
	text(id("act-for-label"), acts[act].during ?? "At most for");
	id("act-for").replaceChildren(...(acts[act].times ?? []).map(([value, says]) => {
		const option = element("option");
		option.value = value;
		option.selected = value === acts[act].preset;
		text(option, says);
		return option;
	}));
	id("act-dry").replaceChildren();
	id("act-do").disabled = letters !== null; // until it is known what it would do
	if (letters) tryLetters(acting);
	id("act").showModal();
	id("act-reason").focus();
}

async function performAct(event) {
	event.preventDefault();
	const now = acting, { act, key, event: skipped, letters } = now, reason = id("act-reason").value.trim(), by = id("act-by").value.trim();
	if (!reason || !by) {
		text(id("act-fault"), "A reason and your name are required.");
		return;
	}
	if (id("act-do").disabled) return;
	id("act-do").disabled = true;
	text(id("act-fault"), "");
	if (letters) {
		await actOnLetters(now, by, reason);
		return;
	}
	try {
		const more = acts[act].times ? "&for=" + id("act-for").value : act === "skip" ? "&event=" + encodeURIComponent(skipped) : "";
		const done = await answer("/v1/acts/" + act + "?key=" + encodedKey(key) + "&by=" + encodeURIComponent(by) + "&reason=" + encodeURIComponent(reason) + more, { method: "POST" });
		const says = outcomes[done.result];
		if (!says) throw new Error("No effect: " + done.result + ".");
		if (acting === now) id("act").close();
		text(id("summary"), says);
	} catch (error) {
		actFault(now, error);
	}
	if (acting === now) id("act-do").disabled = false;
	showActs();
	refreshKey();
}

// actFault shows why an act has failed: in its dialog, unless another one has been opened meanwhile.
function actFault(now, error) {
	text(id(acting === now && id("act").open ? "act-fault" : "summary"), faultOf(error));
}

// ── dead letters ──

// Reading letters attaches to their subscription, so it happens when somebody asks for it.
let lettersKey = null, lettersTurn = 0, shownLetter = null, letterFrom = null;

const lettersStart = "Letters are read only on request, since a reading needs their subscription to itself for a few seconds.";

function letterButtons() {
	id("letters-read").disabled = !caller.may_act;
	if (!caller.may_act) {
		lettersTurn++;
		table(id("letters"), [], () => "", [0, 0, 0, 0, 0, 0].map(() => () => ""));
		id("letters-reasons").replaceChildren();
		closeLetter();
		text(id("letters-note"), "The admin token lets you read, replay and remove the letters. `router deadletters` does the same with the broker's credentials.");
	} else if (!lettersTurn || id("letters-note").textContent.startsWith("The admin token")) text(id("letters-note"), lettersStart);
}

const lettersQuery = (of) => of.id ? "id=" + encodeURIComponent(of.id) : "key=" + encodedKey(of.key);

// lettersRequest is the request of an act on letters, or of a replay of events. The times of the latter are fixed when the dialog opens, so that what is
// done is what was tried.
function lettersRequest(now) {
	if (now.act !== "events") return "/v1/deadletters/" + now.act + "?" + lettersQuery(now.letters);
	const since = new Date(now.until.getTime() - Number(id("act-for").value) * 3_600_000);
	return "/v1/replay?" + lettersQuery(now.letters) + "&since=" + since.toISOString() + "&until=" + now.until.toISOString();
}
const namedKey = (l) => l.key || l.key_base64 ? { ...refOf(l), hash: l.hash } : null;

async function readLetters(key) {
	const turn = ++lettersTurn;
	lettersKey = key;
	id("letters-read").disabled = true;
	text(id("letters-note"), "Reading… (at most 15 s)");
	try {
		const told = await answer("/v1/deadletters" + (key ? "?" + lettersQuery({ key }) : ""));
		if (turn !== lettersTurn) return;
		table(id("letters"), told.letters, (l) => l.id, [
			(l, cell) => {
				const named = namedKey(l);
				if (named || l.hash) keyCell(named ?? { label: l.hash, hash: l.hash }, cell);
				else return "no key";
			},
			(l) => l.reason || l.broken, (l) => l.attempts + (l.crashes ? " (" + l.crashes + " crashes)" : ""), (l) => seconds(l.age_seconds), (l) => l.topic,
			(l, cell) => {
				const button = part(cell, 0, "button");
				button.type = "button";
				text(button, "Show");
				button.setAttribute("aria-label", "Show the letter " + l.id);
				button.onclick = () => openLetter(l, button);
			},
		]);
		const reasons = told.reasons.slice(0, summaryMax);
		children(id("letters-reasons"), told.selected > 1 ? reasons : [], (_, i) => i, () => element("li"), (item, r) => text(item, r.letters + ": " + r.reason));
		text(id("letters-note"), (key ? "Of the key " + key.label + ": " : "") + told.note + " Read at " + moment(new Date().toISOString()).slice(11) + " UTC.");
	} catch (error) {
		if (turn === lettersTurn) text(id("letters-note"), faultOf(error));
	}
	id("letters-read").disabled = !caller.may_act;
}

const day = (time) => time ? moment(time) + " UTC" : "";

function letterFacts(l) {
	const facts = [
		["Became a letter", day(l.published)], ["Original", l.original], ["Original topic", l.topic], ["Original published", day(l.original_published)], ["Reason", l.reason], ["Attempts", l.attempts],
		["Crashes", l.crashes || ""], ["First error", l.first_error], ["Last error", l.last_error], ["Owner", l.owner], ["Payload", l.bytes + " bytes" + (l.encrypted ? ", encrypted" : "")], ["Broken", l.broken],
		["Replay", l.obstacle ? "not possible: " + l.obstacle : "possible"],
	].filter((f) => f[1] !== "" && f[1] !== undefined);
	for (const name of Object.keys(l.properties ?? {}).sort()) facts.push(["Property " + name, l.properties[name]]);
	return facts;
}

async function openLetter(l, from, payload = false) {
	if (!payload) {
		shownLetter = l;
		letterFrom = from;
		id("letter-text").hidden = true;
		id("letter-facts").replaceChildren();
		text(id("letter-note"), "Reading… (at most 15 s)");
		id("letter").hidden = false;
		id("h-letter").focus({ preventScroll: true });
		id("letter").scrollIntoView({ block: "nearest" });
	}
	text(id("letter-label"), (namedKey(l)?.label ?? l.hash ?? "no key") + ", letter " + l.id);
	text(id("letter-fault"), "");
	for (const which of ["payload", "replay", "purge", "replay-key", "purge-key"]) id("letter-" + which).disabled = !caller.may_act || which.endsWith("-key") && !namedKey(l);
	try {
		const told = await answer("/v1/deadletters/letter?id=" + encodeURIComponent(l.id) + (payload ? "&payload=true" : ""));
		if (shownLetter !== l) return;
		table(id("letter-facts"), letterFacts(told), (f) => f[0], [(f) => f[0], (f) => f[1]]);
		const says = [];
		if (told.properties_cut) says.push(told.properties_cut + " more properties are not shown: `router deadletters show` has all.");
		if (payload) {
			says.push("Payload: " + told.payload_is + ".");
			text(id("letter-text"), told.payload);
			id("letter-text").hidden = false;
		}
		text(id("letter-note"), says.join(" "));
	} catch (error) {
		if (shownLetter !== l) return;
		text(id("letter-fault"), faultOf(error));
		text(id("letter-note"), "");
	}
}

function closeLetter() {
	if (!shownLetter) return;
	shownLetter = null;
	id("letter").hidden = true;
	id("letter-text").textContent = "";
	if (letterFrom?.isConnected) letterFrom.focus();
}

// showSaid lists what an act would do, or has done, in its dialog.
function showSaid(says) {
	children(id("act-dry"), says, (_, i) => i, () => element("li"), (item, s) => {
		text(item, s.text);
		name(item, s.alarm ? "busy" : "");
	});
}

const saidOf = (done) => done.says.map((s) => s.text).join("; ");

// tryLetters shows what an act would do, and lets it be done.
async function tryLetters(now) {
	const row = (text) => [{ text, alarm: false }];
	now.counting?.abort(); // a router answers one question at a time
	const counting = now.counting = new AbortController();
	text(id("act-fault"), "");
	showSaid(row("Counting the letters that this affects… (at most 45 s)"));
	try {
		const told = await answer(lettersRequest(now), { method: "POST", signal: counting.signal });
		if (acting !== now || now.counting !== counting) return;
		showSaid(told.says);
		id("act-do").disabled = false;
	} catch (error) {
		if (acting !== now || now.counting !== counting || counting.signal.aborted) return;
		showSaid([]);
		text(id("act-fault"), faultOf(error));
	}
}

async function actOnLetters(now, by, reason) {
	try {
		const done = await answer(lettersRequest(now) + "&yes=true&by=" + encodeURIComponent(by) + "&reason=" + encodeURIComponent(reason), { method: "POST" });
		if (acting === now) id("act").close();
		text(id("summary"), saidOf(done) + ". Act " + done.act + ".");
		if (now.act === "events") {
			refreshKey();
			return;
		}
		closeLetter();
		await readLetters(lettersKey);
		text(id("letters-note"), saidOf(done) + " (act " + done.act + "). " + id("letters-note").textContent);
		id("h-letters").focus({ preventScroll: true });
	} catch (error) {
		if (error.done && acting === now && id("act").open) showSaid(error.done.says);
		else if (error.done) error.message = saidOf(error.done) + ". " + error.message;
		actFault(now, error);
		if (error.done && now.act !== "events") await readLetters(lettersKey); // a part of them is gone
		if (acting === now) id("act-do").disabled = false;
	}
}

// ── rollouts ──

function rolloutWords(r) {
	const reasons = [...new Set(r.moves.map((m) => m.reason || "no reason"))];
	const more = reasons.length - reasonsMax;
	return reasons.slice(0, reasonsMax).join("; ") + (more > 0 ? "; and " + more + " more" : "") + (r.unknown?.length ? ". The handlings of " + r.unknown.join(", ") + " are unknown" : "");
}

let rolloutsTimer = 0;
async function showRollouts() {
	clearTimeout(rolloutsTimer);
	try {
		const told = await answer("/v1/rollouts?last=" + rolloutsMax);
		const counted = (n, cell) => {
			text(cell, n);
			cell.classList.toggle("busy", n > 0);
		};
		table(id("rollouts"), told.rollouts ?? [], (r) => r.begin, [
			(r) => moment(r.begin), rolloutWords, (r) => r.partitions, (r) => seconds(r.longest_pause_seconds) + (r.waiting ? ", " + r.waiting + " wait" : ""),
			(r) => r.answered, (r, cell) => counted(r.cut, cell), (r, cell) => counted(r.unanswered, cell),
		]);
		const says = [];
		if (!told.rollouts?.length) says.push("No partition has moved since the answering members started.");
		else says.push("The next owner repeats cut and unanswered handlings. `router rollout` shows each move and member.");
		if (told.silent?.length) says.push("Without " + told.silent.join("; ") + ".");
		text(id("rollouts-note"), says.join(" "));
	} catch (error) {
		text(id("rollouts-note"), faultOf(error));
	}
	rolloutsTimer = setTimeout(() => !document.hidden && showRollouts(), rolloutsEvery);
}

// ── the connection ──

function state(words, className) {
	text(id("link"), words);
	name(id("link"), "pill " + className);
}

// stream applies events until the stream ends, and throws if it is refused, fails, or ends without an event.
async function stream(signal) {
	let events = 0;
	const gone = new AbortController();
	signal.addEventListener("abort", () => gone.abort());
	let watchdog = setTimeout(() => gone.abort(), firstEventMax);
	try {
		const response = await ask("/v1/page/events", { signal: gone.signal });
		if (!response.ok) {
			const refused = new Error((await response.text()).trim().slice(0, 400));
			refused.status = response.status;
			throw refused;
		}
		const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
		let buffer = "";
		for (;;) {
			const { value, done } = await reader.read();
			if (done && events > 0) return;
			if (done) throw new Error("a stream without an event");
			buffer += value;
			if (buffer.length > bufferMax) throw new Error("an event is too long");
			const whole = buffer.split("\n\n");
			buffer = whole.pop();
			for (const event of whole) {
				events++;
				apply(JSON.parse(event.slice("data: ".length)));
				state("live", "good");
				clearTimeout(watchdog);
				watchdog = setTimeout(() => gone.abort(), eventMax);
			}
		}
	} finally {
		clearTimeout(watchdog);
		gone.abort();
	}
}

// poll asks for whole snapshots for a while, and throws if that is refused.
async function poll(signal) {
	for (let i = 0; i < pollsMax && !signal.aborted && !document.hidden; i++) {
		try {
			apply(await answer("/v1/page", { signal }));
			state("polling", "busy");
		} catch (error) {
			if (error.status === 401 || error.status === 403) throw error;
			state("no answer", "bad");
		}
		await pause(pollEvery);
	}
}

async function follow() {
	for (;;) {
		if (document.hidden) {
			state("paused", "");
			await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
			continue;
		}
		attempt = new AbortController();
		const { signal } = attempt;
		try {
			try {
				await stream(signal);
				await pause(1000); // the router ends each stream after a while
				continue;
			} catch (error) {
				if (error.status === 401 || error.status === 403) throw error;
			}
			await poll(signal);
		} catch (error) {
			state("locked", "bad");
			text(id("locked-text"), token && error.status === 401 ? wrongToken : error.status === 401 ? "This router shows its data only with the admin token." : error.message);
			id("locked").hidden = false;
			await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true })); // until there is a new token
		}
	}
}

setInterval(() => {
	const silent = Math.round((Date.now() - heard) / 1000);
	if (silent < 8 || document.hidden || !id("locked").hidden) return;
	id("cut").hidden = false;
	text(id("cut-for"), "Since " + silent + " s.");
}, 1000);

document.addEventListener("visibilitychange", () => {
	heard = Date.now();
	if (document.hidden) {
		attempt.abort();
		return;
	}
	showActs();
	showRollouts();
});

// ── what people do ──

id("search").addEventListener("submit", (event) => {
	event.preventDefault();
	const value = id("search-text").value, form = id("search-form").value;
	openKey(form === "hash" ? { label: "hash " + value.trim(), hash: value.trim() } : form === "base64" ? { label: "base64:" + value.trim(), key_base64: value.trim() } : { label: printable(value), key: value }, id("search-text"));
});
id("key-close").addEventListener("click", closeKey);
id("key").addEventListener("keydown", (event) => event.key === "Escape" && closeKey());
id("key-hold").addEventListener("click", () => openAct("hold", shownKey));
id("key-release").addEventListener("click", () => openAct("release", shownKey));
id("key-skip").addEventListener("click", () => openAct("skip", shownKey));
id("key-park").addEventListener("click", () => openAct("park", shownKey));
id("key-unpark").addEventListener("click", () => openAct("unpark", shownKey));
id("key-letters").addEventListener("click", () => {
	id("h-letters").focus({ preventScroll: true });
	id("h-letters").scrollIntoView({ block: "start" });
	readLetters(shownKey);
});
id("key-events").addEventListener("click", () => openAct("events", shownKey, { key: shownKey }));
id("act").addEventListener("close", () => acting.counting?.abort());
id("act-for").addEventListener("change", () => {
	if (!acting.letters) return;
	id("act-do").disabled = true;
	tryLetters(acting);
});
id("letters-read").addEventListener("click", () => readLetters(null));
id("letter-payload").addEventListener("click", () => openLetter(shownLetter, letterFrom, true));
for (const act of ["replay", "purge"]) {
	id("letter-" + act).addEventListener("click", () => openAct(act, { label: id("letter-label").textContent }, { id: shownLetter.id }));
	id("letter-" + act + "-key").addEventListener("click", () => openAct(act, { label: "all of the key " + namedKey(shownLetter).label }, { key: namedKey(shownLetter) }));
}
id("letter-close").addEventListener("click", closeLetter);
id("letter").addEventListener("keydown", (event) => event.key === "Escape" && closeLetter());
id("act").querySelector("form").addEventListener("submit", performAct);
id("token-open").addEventListener("click", () => {
	id("token-text").value = "";
	id("token").showModal();
});
id("token").querySelector("form").addEventListener("submit", (event) => {
	event.preventDefault();
	token = id("token-text").value.trim();
	id("token-text").value = "";
	id("token").close();
	id("locked").hidden = true;
	attempt.abort();
	refreshKey();
	showRollouts();
});
for (const button of document.querySelectorAll("dialog .cancel")) button.addEventListener("click", () => button.closest("dialog").close());

follow();
showRollouts();
