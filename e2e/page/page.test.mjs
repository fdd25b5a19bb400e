// Looks at the status page of an invented group (main.go) with a headless Chromium: what people find on it and what they can do, by mouse and keyboard, in all
// sizes, light and dark; what axe-core says; that nothing leaves the host; and how long one refresh takes. make page runs it.
//
//	PAGE      the program of main.go
//	CHROMIUM  the browser
//	PICTURES  a folder, if pictures for the documents are wanted; then nothing else is done

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { createInterface } from "node:readline";

import { Chromium } from "./chromium.mjs";

const stuck = "user-04711", failing = "user-00815", hot = "user-00042", reserved = "user-00100", called = "user-00101";
const sizes = [[390, 844], [768, 1024], [1280, 800], [2560, 1440]];

let browser, page, url, token, tabs = [];

async function startPage() {
	page = spawn(process.env.PAGE, [], { stdio: ["pipe", "pipe", "inherit"] });
	const line = await new Promise((resolve, reject) => {
		createInterface({ input: page.stdout }).once("line", resolve);
		page.once("exit", (code) => reject(new Error("the page has ended with " + code)));
	});
	({ url, token } = JSON.parse(line));
}

async function stopPage() {
	const ended = new Promise((resolve) => page.once("exit", resolve));
	page.stdin.end();
	await ended;
}

before(async () => {
	await startPage();
	browser = new Chromium(process.env.CHROMIUM);
});

after(async () => {
	await browser?.close();
	await stopPage();
});

afterEach(async () => {
	await Promise.all(tabs.map((tab) => tab.call("Page.close")));
	tabs = [];
});

// visit opens the page in a tab of its own, and waits for a report of all members.
async function visit(width = 1280, height = 800, scheme = "light", scale = 1) {
	const tab = await browser.open();
	tabs.push(tab);
	await tab.screen(width, height, scheme, scale);
	await tab.call("Page.navigate", { url });
	await tab.until("the first report is there", () => document.querySelectorAll("#tiles li").length === 10 && document.querySelectorAll("#worst tr").length === 50);
	await allAnswer(tab);
	return tab;
}

// allAnswer waits for a report without a member that is late, as some are on a busy machine.
async function allAnswer(tab) {
	await tab.until("all members answer", () => !document.querySelector("#problems").innerText.includes("Member silent") &&
		!document.querySelector("#worst-note").textContent.includes("no answer in time"));
}

// withToken gives the page the admin token, as a person does.
async function withToken(tab) {
	await tab.click("#token-open");
	await tab.until("the dialog is open", () => document.activeElement.id === "token-text");
	await tab.type(token);
	await tab.press("Enter");
	await tab.until("keys are named", () => document.querySelector("#problems button")?.textContent.startsWith("user-"));
	await allAnswer(tab);
}

// nothingLeftTheHost checks the requests of a tab, and that its script failed nowhere.
function nothingLeftTheHost(tab, faults = 0) {
	assert.deepEqual(tab.requests.filter((r) => !r.startsWith(url) && !r.startsWith("data:")), []);
	assert.ok(tab.requests.length > 1);
	assert.ok(tab.faults.length <= faults, tab.faults.join("\n"));
}

if (process.env.PICTURES) {
	test("pictures for the documents", async () => {
		for (const [name, width, height, scheme, scale] of [["page-desktop", 1280, 900, "light", 1], ["page-desktop-dark", 1280, 900, "dark", 1], ["page-phone", 390, 844, "light", 2]]) {
			const tab = await visit(width, height, scheme, scale);
			await withToken(tab);
			await tab.run(() => { document.activeElement.blur(); scrollTo(0, 0); });
			writeFileSync(join(process.env.PICTURES, name + ".png"), await tab.picture());
			if (name === "page-desktop") {
				await tab.click("#problems li:first-child button");
				await tab.until("the history is there", () => document.querySelectorAll("#history tr").length > 10);
				writeFileSync(join(process.env.PICTURES, "page-key.png"), await tab.picture());
				await tab.click("#key-close");
				await tab.run((key) => { document.querySelector("#search-text").value = key; document.querySelector("#search").requestSubmit(); }, reserved);
				await tab.until("the reservation is told", () => document.querySelector("#key-facts").innerText.includes("is reserved"));
				writeFileSync(join(process.env.PICTURES, "page-reserved.png"), await tab.picture());
				await tab.click("#key-close");
			}
			if (scheme === "dark") continue;
			await tab.click("#letters-read");
			await tab.until("the letters are there", () => document.querySelectorAll("#letters tr").length > 20);
			await tab.click("#letters tr:first-child td:last-child button");
			await tab.until("a letter is there", () => document.querySelector("#letter-facts").innerText.includes("Property x-note"));
			await tab.run((wide) => { // the newest letters, and one of them
				document.activeElement.blur();
				for (const row of [...document.querySelectorAll("#letters tr")].slice(wide ? 6 : 2)) row.hidden = true;
				document.querySelector("#h-letters").scrollIntoView({ behavior: "instant", block: "start" });
			}, width > 1000);
			writeFileSync(join(process.env.PICTURES, name.replace("page-", "page-letters-") + ".png"), await tab.picture());
		}
	});
} else {
	// A stuck, a poison-pill and a hot key among 10,000 are on the first screen, with their reasons, for who does not know them: red is what is broken.
	test("problems come first", async () => {
		for (const [width, height] of [[1280, 800], [390, 844]]) {
			const tab = await visit(width, height);
			await withToken(tab);
			const seen = await tab.run(() => [...document.querySelectorAll("#problems li")].map((item) => ({
				text: item.innerText.replaceAll("\n", " "), red: getComputedStyle(item.querySelector("b")).color, bottom: item.getBoundingClientRect().bottom + scrollY,
			})));
			for (const [i, words] of [[`Stuck key ${stuck}`, "it waits for the handler (worker 1), for 2m"], [`Failing key ${failing}`, "has failed 5 times"], [`Hot key ${hot}`, "busy 100 %"]].entries()) {
				for (const word of words) assert.ok(seen[i].text.includes(word), `${i}: ${seen[i].text}`);
				assert.ok(seen[i].bottom <= height, `problem ${i} ends at ${seen[i].bottom} of ${height}`);
			}
			assert.equal(seen[0].red, "rgb(179, 38, 30)");
			assert.notEqual(seen[2].red, seen[0].red);
			assert.match(await tab.run(() => document.querySelector("#worst-note").textContent), /^The 50 worst of 10,000\. /);
			assert.match(await tab.run(() => document.title), /^5 problems · orders · Ringfence$/);
			assert.match(await tab.run(() => document.querySelector("#tiles").innerText), /Events handled\s+2,000\/s/);
			assert.match(await tab.run(() => document.querySelector("#records tr:nth-child(2)").innerText), /0 of 2,400,000[^]*20 of 2,391,000: received 17, retry 3/);
			await tab.until("the rollout is told", () => document.querySelectorAll("#rollouts tr").length === 1);
			assert.deepEqual(await tab.run(() => [...document.querySelectorAll("#rollouts td")].map((cell) => cell.textContent)), ["leave <b>orders-2</b>; join orders-2. The handlings of orders-2 are unknown", "164", "31 ms", "6", "1", "0"]);
			nothingLeftTheHost(tab);
		}
	});

	// Without the token there are hashes, and nobody can act; the data of the page is live.
	test("a stranger sees hashes", async () => {
		const tab = await visit();
		await tab.until("the stream is open", () => document.querySelector("#link").textContent === "live");
		const labels = await tab.run(() => [...document.querySelectorAll("button.key")].map((b) => b.textContent));
		assert.ok(labels.length > 50);
		for (const label of labels) assert.match(label, /^[0-9a-f]{16}$/);
		await tab.click("#problems li:first-child button");
		await tab.until("the page says that it needs the token", () => document.querySelector("#key-fault").textContent === "This needs the admin token.");
		assert.ok(await tab.run(() => document.querySelector("#key-hold").disabled && document.querySelector("#key-release").disabled && document.querySelectorAll("#acts tr").length === 0));
		await tab.click("#token-open");
		await tab.until("the dialog is open", () => document.activeElement.id === "token-text");
		await tab.type("a wrong token, of some length");
		await tab.press("Enter");
		await tab.until("the page says that it is wrong", () => document.querySelector("#locked").innerText === "This is not the admin token of this router.");
		nothingLeftTheHost(tab, 10); // the browser logs each 401
	});

	// One click leads to the story of a key; a hold needs a reason and shows at the owner; a release ends it.
	test("find a key, hold it, release it", async () => {
		const tab = await visit();
		await withToken(tab);
		await tab.click("#problems li:first-child button");
		await tab.until("the key and its history are there", () => document.querySelectorAll("#history tr").length === 200 && document.querySelector("#key-facts").innerText.includes("waits for the handler (worker 1), for 2m"));
		assert.match(await tab.run(() => document.querySelector("#history-note").textContent), /^The 200 newest of 300 steps/);
		assert.equal(await tab.run(() => document.activeElement.id), "h-key");
		await tab.press("Escape");
		assert.ok(await tab.run(() => document.querySelector("#key").hidden));

		await tab.run(() => document.querySelector("#search-text").focus());
		await tab.type("user-01234");
		await tab.press("Enter");
		await tab.until("the key is found", () => document.querySelector("#key-label").textContent === "user-01234" && document.querySelector("#key-facts").innerText.includes("waits for room at its worker"));
		await tab.click("#key-hold");
		await tab.until("the dialog is open", () => document.activeElement.id === "act-reason");
		await tab.press("Enter"); // without a reason nothing happens
		assert.ok(await tab.run(() => document.querySelector("#act").open && document.querySelector("#act-reason").validity.valueMissing));
		await tab.type("wrong totals <b>INC-7</b>");
		await tab.press("Tab");
		await tab.type("alice");
		await tab.press("Enter");
		await tab.until("the key is on hold", () => !document.querySelector("#act").open && document.querySelector("#key-facts").innerText.includes("waits for its release"));
		await tab.until("the hold is in the list", () => document.querySelector("#acts").innerText.includes("wrong totals <b>INC-7</b>") && document.querySelector("#acts").innerText.includes("alice"));
		await tab.until("the tile counts it", () => /Keys on hold\s+1\s/.test(document.querySelector("#tiles").innerText));
		await tab.click("#acts tr:first-child td:last-child button");
		await tab.until("the dialog is open", () => document.querySelector("#h-act").textContent === "Release this key?" && document.activeElement.id === "act-reason");
		await tab.type("fixed");
		await tab.click("#act-do");
		await tab.until("the key is not held", () => document.querySelector("#key-facts").innerText.includes("waits for room at its worker"));
		await tab.until("the release is in the list", () => document.querySelector("#acts tr:first-child b").textContent === "release");

		await tab.click("#key-skip"); // the event that the page shows, and no other
		await tab.until("the dialog is open", () => document.querySelector("#h-act").textContent === "Skip this event?" && document.activeElement.id === "act-reason");
		assert.equal(await tab.run(() => document.querySelector("#act-label").textContent), "user-01234, event 7:4412:-1:-1");
		await tab.type("poison pill");
		await tab.click("#act-do");
		await tab.until("the skip is in the list, without a button", () => {
			const row = document.querySelector("#acts tr:first-child");
			return !document.querySelector("#act").open && row.innerText.includes("poison pill") && row.innerText.includes("event 7:4412:-1:-1: in effect until ") && row.querySelector("td:last-child button").hidden;
		});

		await tab.click("#key-park");
		await tab.until("the dialog is open", () => document.querySelector("#h-act").textContent === "Park this key?" && document.activeElement.id === "act-reason");
		assert.equal(await tab.run(() => document.querySelector("#act-for").value + " of " + document.querySelectorAll("#act-for option").length), "168h of 4");
		await tab.type("handler of 1.7 fails");
		await tab.click("#act-do");
		await tab.until("the park is in the list", () => {
			const row = document.querySelector("#acts tr:first-child");
			return !document.querySelector("#act").open && row.querySelector("b").textContent === "parked" && row.innerText.includes("handler of 1.7 fails") && row.innerText.includes("until ");
		});
		await tab.click("#acts tr:first-child td:last-child button");
		await tab.until("the dialog is open", () => document.querySelector("#h-act").textContent === "Unpark this key?" && document.querySelector("#act-for-row").hidden);
		await tab.type("1.8 is out");
		await tab.click("#act-do");
		await tab.until("the unpark is in the list", () => document.querySelector("#acts tr:first-child b").textContent === "coming back" && document.querySelector("#acts tr:first-child td:last-child button").hidden);
		nothingLeftTheHost(tab);
	});

	// An event is skipped as one of the key that has it: until the members have told of another key, it has none.
	test("the event of one key is not offered for another one", async () => {
		const tab = await visit();
		await withToken(tab);
		const find = (key) => tab.run((key) => {
			document.querySelector("#search-text").value = key;
			document.querySelector("#search").requestSubmit();
			return document.querySelector("#key-skip").disabled;
		}, key);
		await find(failing);
		await tab.until("its event is told", () => !document.querySelector("#key-skip").disabled);
		assert.ok(await find("user-01234"), "the event of the key before can be skipped");
		await tab.until("the event of this one is told", () => !document.querySelector("#key-skip").disabled);
		nothingLeftTheHost(tab);
	});

	// An act that is answered after its dialog was left does nothing to the next dialog.
	test("a late answer leaves the next dialog alone", async () => {
		const tab = await visit();
		await withToken(tab);
		await tab.run(() => {
			document.querySelector("#search-text").value = "user-02345";
			document.querySelector("#search").requestSubmit();
			const ask = window.fetch;
			window.asked = ask.bind(window);
			window.answerHold = null;
			window.fetch = (path, options) => {
				if (path.startsWith("/v1/deadletters/")) return new Promise(() => 0); // it is still being found out
				return path.startsWith("/v1/acts/hold") ? new Promise((resolve) => { window.answerHold = () => resolve(ask(path, options)); }) : ask(path, options);
			};
		});
		await tab.until("the key is found", () => document.querySelector("#key-facts").innerText.includes("waits for"));
		await tab.click("#key-hold");
		await tab.until("the dialog is open", () => document.activeElement.id === "act-reason");
		await tab.type("slow");
		await tab.run(() => { document.querySelector("#act-by").value = "alice"; });
		await tab.click("#act-do");
		await tab.until("the act is under way", () => window.answerHold);
		await tab.click("#act .cancel");
		await tab.run(() => openAct("purge", { label: "a letter" }, { id: "0:0:0:0" })); // which waits for what it would do
		await tab.run(() => window.answerHold());
		await tab.until("the hold is answered", () => document.querySelector("#summary").textContent === "The key is held.");
		const after = await tab.run(() => ({ open: document.querySelector("#act").open, disabled: document.querySelector("#act-do").disabled }));
		assert.deepEqual(after, { open: true, disabled: true });
		await tab.run(async () => {
			window.fetch = window.asked;
			await answer("/v1/acts/release?key=user-02345&by=alice&reason=over", { method: "POST" });
		});
	});

	// Which member's calls wait and run, how near its bounds are, and of a key the holder of its reservation, the call that runs, and those that wait.
	test("calls and reservations", async () => {
		const tab = await visit();
		await withToken(tab);
		const rows = await tab.run(() => [...document.querySelectorAll("#lane tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
		assert.deepEqual(rows[0], ["orders-7", "0", "0", "0", "31", "9,120 of 10,000 (lane.calls_max)"]);
		assert.equal(await tab.run(() => document.querySelector("#lane tr:first-child td:last-child span").className), "busy");
		assert.deepEqual([rows.length, ...rows.slice(1).map((r) => r.slice(1, 4).join()).sort()], [3, "0,1,0", "3,0,1"]);
		assert.match(await tab.run(() => document.querySelector("#lane-note").textContent), /^3 calls or reservations wait, 1 call runs, 1 key is reserved; 31 refused because a bound was reached/);
		assert.match(await tab.run(() => document.querySelector("#problems").innerText), /Bound of calls near[^]*orders-7: 9,120 of 10,000/);

		const find = (key) => tab.run((key) => { document.querySelector("#search-text").value = key; document.querySelector("#search").requestSubmit(); }, key);
		await find(reserved);
		await tab.until("the reservation is told", () => /is reserved, for [\dhms.]+, through orders-3, fence 4194404\.7; it ends in 1\.4s unless its holder renews it; 1 event waits behind it/.test(document.querySelector("#key-facts").innerText));
		const facts = await tab.run(() => document.querySelector("#key-facts").innerText);
		for (const says of ["3 calls or reservations wait", "a call of charge, made at orders-1, has waited for 4.2s and waits for 5.8s more; 2 callers want its answer", "a reservation, made at orders-2, has waited", "a call of refund"]) assert.ok(facts.includes(says), facts);
		assert.ok(await tab.run(() => document.querySelector("#key-skip").disabled), "a reservation can be skipped as if it was an event");
		await find(called);
		await tab.until("the call is told", () => document.querySelector("#key-facts").innerText.includes("a call of charge, made at orders-4, whose caller waits for 8.9s more, came 1.1s ago"));
		nothingLeftTheHost(tab);
	});

	// Schedules: the one that members declare differently comes first, and is a problem.
	test("schedules", async () => {
		const tab = await visit();
		const rows = await tab.run(() => [...document.querySelectorAll("#schedules tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
		assert.deepEqual(rows.map((r) => r[0]), ["report", "cleanup"]);
		assert.match(rows[0].at(-1), /^declared differently by orders-2: /);
		assert.match(rows[1].at(-1), /^runs its firing of \d{4}-/);
		assert.equal(rows[1].at(-2), "3 skipped");
		assert.match(await tab.run(() => document.querySelector("#problems").innerText), /Schedule[^]*report: declared differently by orders-2/);
		nothingLeftTheHost(tab);
	});

	// Dead letters are read when somebody asks, with the token; a replay and a purge are tried first, need a reason, and are done as they were tried.
	test("dead letters", async () => {
		const tab = await visit();
		await tab.until("the token is asked for", () => document.querySelector("#letters-read").disabled && document.querySelector("#letters-note").textContent.startsWith("The admin token lets you read"));
		await withToken(tab);
		await tab.until("they can be read", () => !document.querySelector("#letters-read").disabled);
		assert.equal(await tab.run(() => document.querySelectorAll("#letters tr").length), 0);
		assert.ok(!tab.requests.some((r) => r.includes("/v1/deadletters")), "they were read unasked");
		await tab.click("#letters-read");
		await tab.until("they are there", () => document.querySelectorAll("#letters tr").length === 40 && document.querySelector("#letters-note").textContent.startsWith("40 dead letters wait. Read at "));
		assert.match(await tab.run(() => document.querySelector("#letters tr").innerText), /user-00815\s+failed 10 times\s+10\s+1m30s\s+persistent:\/\/public\/default\/orders\s+Show/);
		assert.match(await tab.run(() => document.querySelector("#letters-reasons").innerText), /^30: failed 10 times\n8: rejected: the total does not match/);
		assert.ok((await tab.run(() => document.querySelector("#letters tr:nth-child(2)").innerText)).includes(`<b onclick="x">failed</b>`));
		assert.ok((await tab.run(() => document.querySelector("#letters tr:nth-child(3)").innerText)).startsWith("no key"));

		await tab.click("#letters tr:nth-child(2) td:last-child button");
		await tab.until("its content is there", () => document.querySelector("#letter-facts").innerText.includes("Property x-note"));
		assert.equal(await tab.run(() => document.activeElement.id), "h-letter");
		assert.ok(await tab.run(() => document.querySelector("#letter-text").hidden), "the payload is shown unasked");
		await tab.click("#letter-payload");
		await tab.until("the payload is there", () => !document.querySelector("#letter-text").hidden && document.querySelector("#letter-text").textContent.startsWith("<script>"));
		assert.ok(await tab.run(() => document.querySelectorAll("img, iframe, script").length === 1 && !document.title.includes("broken")));
		await tab.press("Escape");
		assert.ok(await tab.run(() => document.querySelector("#letter").hidden && document.activeElement.closest("#letters") !== null));

		await tab.click("#letters tr:nth-child(1) td:last-child button");
		await tab.until("the letter is there", () => document.querySelector("#letter-label").textContent === "user-00815, letter 9:400:-1:-1");
		await tab.click("#letter-purge");
		await tab.until("it is tried", () => document.querySelector("#h-act").textContent === "Purge these letters?" && document.querySelector("#act-dry").innerText.includes("1 would be removed") && !document.querySelector("#act-do").disabled);
		await tab.press("Escape");
		await tab.click("#letter-replay-key");
		await tab.until("it is tried", () => document.querySelector("#act-dry").innerText.includes("6 would be sent") && document.querySelector("#act-label").textContent === "all of the key user-00815");
		await tab.press("Enter"); // without a reason nothing happens
		assert.ok(await tab.run(() => document.querySelector("#act").open && document.querySelector("#act-reason").validity.valueMissing));
		await tab.type("stock is back");
		await tab.press("Tab");
		await tab.type("alice");
		await tab.press("Enter");
		await tab.until("they are gone", () => !document.querySelector("#act").open && document.querySelectorAll("#letters tr").length === 34 && document.querySelector("#letters-note").textContent.includes("6 sent (act f00dfeed00000001)"));

		await tab.run(() => { document.querySelector("#search-text").value = "user-00816"; document.querySelector("#search").requestSubmit(); });
		await tab.until("the key is open", () => !document.querySelector("#key").hidden);
		await tab.click("#key-letters");
		await tab.until("its letters are there", () => document.querySelectorAll("#letters tr").length === 5 && document.querySelector("#letters-note").textContent.startsWith("Of the key user-00816: 5 dead letters wait"));
		nothingLeftTheHost(tab);
	});

	// A replay that a topic refuses in part says which letters remain, and the list no longer has the others.
	test("dead letters that are refused", async () => {
		const tab = await visit();
		await withToken(tab);
		await tab.run(() => { document.querySelector("#search-text").value = "user-00819"; document.querySelector("#search").requestSubmit(); });
		await tab.until("the key is open", () => !document.querySelector("#key").hidden);
		await tab.click("#key-letters");
		await tab.until("its letters are there", () => document.querySelectorAll("#letters tr").length === 6);
		await tab.click("#letters tr:nth-child(1) td:last-child button");
		await tab.until("the letter is there", () => !document.querySelector("#letter-replay-key").disabled && document.querySelector("#letter-label").textContent.startsWith("user-00819"));
		await tab.click("#letter-replay-key");
		await tab.until("it is tried", () => document.querySelector("#act-dry").innerText.includes("6 would be sent") && !document.querySelector("#act-do").disabled);
		await tab.type("stock is back");
		await tab.press("Tab");
		await tab.type("alice");
		await tab.press("Enter");
		await tab.until("they are gone but one", () => document.querySelectorAll("#letters tr").length === 1 && !document.querySelector("#act-do").disabled);
		assert.match(await tab.run(() => document.querySelector("#act-dry").innerText), /5 sent[^]*9:396:-1:-1 of 70000 bytes: persistent:\/\/public\/default\/orders has not taken it/);
		assert.match(await tab.run(() => document.querySelector("#act-fault").textContent), /^letters or events were not sent: /);
		assert.ok(await tab.run(() => document.querySelector("#act").open));
		nothingLeftTheHost(tab, 1); // the browser notes the status 502
	});

	// Events of a key are replayed as letters are; another time is counted again, and what is done is what was counted.
	test("events are replayed", async () => {
		const tab = await visit();
		await withToken(tab);
		await tab.run(() => { document.querySelector("#search-text").value = "user-00816"; document.querySelector("#search").requestSubmit(); });
		await tab.until("the key is open", () => !document.querySelector("#key").hidden && !document.querySelector("#key-events").disabled);
		await tab.click("#key-events");
		await tab.until("it is tried", () => document.querySelector("#h-act").textContent === "Replay events of this key?" && document.querySelector("#act-dry").innerText.includes("3 would be sent") && document.querySelector("#act-for-label").textContent === "Published in");
		await tab.run(() => { const hours = document.querySelector("#act-for"); hours.value = "24"; hours.dispatchEvent(new Event("change")); });
		await tab.until("the day is tried", () => document.querySelector("#act-dry").innerText.includes("72 would be sent") && !document.querySelector("#act-do").disabled);
		await tab.run(() => document.querySelector("#act-reason").focus());
		await tab.type("the handler had a defect");
		await tab.press("Tab");
		await tab.type("alice");
		await tab.press("Enter");
		await tab.until("they are sent", () => !document.querySelector("#act").open && document.querySelector("#summary").textContent.includes("72 sent. Act f00dfeed00000002"));
		const asked = tab.requests.filter((r) => r.includes("/v1/replay?")).map((r) => new URL(r).searchParams);
		assert.equal(asked.length, 3);
		assert.ok(asked[1].get("since") === asked[2].get("since") && asked.every((a) => a.get("until") === asked[0].get("until") && a.get("key") === "user-00816"));
		assert.ok(!asked[1].has("yes") && asked[2].get("yes") === "true" && asked[2].get("by") === "alice" && asked[2].get("reason") === "the handler had a defect");
		nothingLeftTheHost(tab);
	});

	// Keys are bytes of producers: none becomes markup, and each can be looked for.
	test("hostile keys stay texts", async () => {
		const tab = await visit();
		await withToken(tab);
		for (const [form, text, label] of [
			["key", `<img src=x onerror="document.title='broken'">`, /^<img src=x onerror=/], ["key", "\u202eright to left\u202c", /^\\u\{202e\}right to left/], ["base64", "//4gYmluYXJ5IAA=", /^base64:/],
			["key", "</script><script>document.title='broken'</script>", /^<\/script><script>/],
		]) {
			await tab.run((form, text) => {
				document.querySelector("#search-form").value = form;
				document.querySelector("#search-text").value = text;
				document.querySelector("#search").requestSubmit();
			}, form, text);
			await tab.until("the key has a history", () => document.querySelectorAll("#history tr").length === 200);
			assert.match(await tab.run(() => document.querySelector("#key-label").textContent), label);
		}
		assert.ok(await tab.run(() => document.querySelectorAll("img, iframe, script").length === 1 && !document.title.includes("broken")));
		// Were the script wrong and made markup, the browser would refuse it.
		assert.match(await tab.run(() => { try { document.querySelector("#summary").innerHTML = "<b>x</b>"; return ""; } catch (error) { return String(error); } }), /TrustedHTML/);
	});

	for (const scheme of ["light", "dark"]) {
		// In all sizes nothing is wider than the screen, nothing is cut, and axe-core finds nothing, contrast included; with a dialog and a key open, too.
		test("sizes and accessibility, " + scheme, async () => {
			const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
			const tab = await visit(1280, 800, scheme);
			await withToken(tab);
			await tab.run(axe);
			const judge = async (where, selector) => {
				const found = await tab.run(async (selector) => {
					const { violations, passes } = await axe.run(selector ?? document);
					return { passes: passes.map((p) => p.id), violations: violations.map((v) => v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join("; ")) };
				}, selector);
				assert.deepEqual(found.violations, [], where);
				assert.ok(found.passes.includes("color-contrast"), where);
			};
			await tab.click("#problems li:first-child button");
			await tab.until("the history is there", () => document.querySelectorAll("#history tr").length === 200);
			await tab.click("#letters-read");
			await tab.until("the letters are there", () => document.querySelectorAll("#letters tr").length > 20);
			await tab.click("#letters tr:nth-child(2) td:last-child button");
			await tab.until("a letter is there", () => document.querySelector("#letter-facts").innerText.includes("Property x-note"));
			await tab.click("#letter-payload");
			await tab.until("the payload is there", () => !document.querySelector("#letter-text").hidden);
			for (const [width, height] of sizes) {
				await tab.screen(width, height, scheme);
				await tab.until("the page has the width", (width) => innerWidth === width, width);
				const wrong = await tab.run((width) => [
					...[...document.querySelectorAll("body *")].filter((node) => !node.closest("svg, .sr, .skip, thead") && node.getClientRects().length && (node.getBoundingClientRect().right > width + 0.5 || node.getBoundingClientRect().left < -0.5)),
					...[...document.querySelectorAll("main *, header *")].filter((node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX !== "visible" && !node.closest(".sr, input, select, thead")),
				].slice(0, 5).map((node) => node.outerHTML.slice(0, 150)), width);
				assert.deepEqual(wrong, [], `at ${width} px`);
				assert.ok((await tab.run(() => document.documentElement.scrollWidth)) <= width, `at ${width} px the page scrolls sideways`);
				const small = await tab.run(() => [...document.querySelectorAll("button, input, select")].filter((b) => b.getClientRects().length && b.getBoundingClientRect().height < 24).map((b) => b.outerHTML.slice(0, 100)));
				assert.deepEqual(small, [], `too small for a finger at ${width} px`);
				if (width === 390 || width === 1280) await judge(`${width} px`);
			}
			await tab.click("#key-hold");
			await tab.until("the dialog is open", () => document.activeElement.id === "act-reason");
			await judge("the dialog", "#act");
		});
	}

	// Who has a keyboard alone reaches everything, sees where they are, and gets out of what they have opened.
	test("keyboard", async () => {
		const tab = await visit();
		await tab.run(() => document.body.focus());
		const reached = [];
		for (let i = 0; i < 20; i++) {
			await tab.press("Tab");
			reached.push(await tab.run(() => {
				const node = document.activeElement, style = getComputedStyle(node);
				return { what: node.id || node.className || node.tagName, outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
			}));
		}
		const names = reached.map((r) => r.what);
		assert.deepEqual(names.slice(0, 2), ["skip", "search-text"], names.join());
		for (const want of ["search-form", "token-open", "key mono"]) assert.ok(names.includes(want), names.join());
		assert.deepEqual(reached.filter((r) => !r.outline), []);
		await tab.run(() => document.querySelector("#problems button").focus());
		await new Promise((resolve) => setTimeout(resolve, 2500)); // two refreshes
		assert.ok(await tab.run(() => document.activeElement.closest("#problems") !== null), "a refresh takes the focus away");
		await tab.press("Enter");
		await tab.until("the key is open", () => document.activeElement.id === "h-key");
		await tab.press("Escape");
		assert.ok(await tab.run(() => document.activeElement.closest("#problems") !== null), "the focus does not return");
		await tab.run(() => document.querySelector("#token-open").focus());
		await tab.press("Enter");
		await tab.until("the dialog is open", () => document.activeElement.id === "token-text");
		await tab.press("Escape");
		await tab.until("the focus is back", () => document.activeElement.id === "token-open");
	});

	// Under 10,000 waiting keys and 50 members a refresh takes the browser no longer than the layout of a copy of the page; it takes about half of that. The quickest of ten is one that
	// nothing disturbed.
	test("a refresh is quick", async () => {
		const tab = await visit();
		await withToken(tab);
		const took = await tab.run(async () => {
			const whole = await (await fetch("/v1/page", { headers: { Authorization: "Bearer " + token } })).json();
			const drawn = document.querySelector("main");
			const time = (what) => {
				const begun = performance.now();
				what();
				document.body.getBoundingClientRect();
				return performance.now() - begun;
			};
			const refreshes = [], copies = [];
			for (let i = 0; i < 10; i++) {
				for (const row of [...whole.worst.rows, ...whole.members.rows]) row.age = row.oldest = i + " s"; // every row differs
				whole.worst.rows.reverse();
				refreshes.push(time(() => apply(whole)));
				const copy = drawn.cloneNode(true);
				copies.push(time(() => drawn.after(copy)));
				copy.remove();
			}
			return { refresh: Math.min(...refreshes), copy: Math.min(...copies), rows: drawn.querySelectorAll("tbody tr").length };
		});
		console.log(`a refresh of ${took.rows} rows takes the browser ${took.refresh.toFixed(1)} ms, the layout of a copy ${took.copy.toFixed(1)} ms`);
		assert.ok(took.refresh < took.copy, `${took.refresh} ms, and a copy ${took.copy} ms`);
		assert.ok(took.rows > 100);
	});

	// When all streams are taken the page polls; when a member falls silent it is on top; when all is well the page says so; when the router ends, that too.
	test("live", async () => {
		const streams = [];
		for (const end = Date.now() + 60_000; streams.length < 16;) { // a tab of the test before holds one until the router has seen it close
			assert.ok(Date.now() < end, `only ${streams.length} streams`);
			const gone = new AbortController();
			const response = await fetch(url + "v1/page/events", { signal: gone.signal });
			if (response.status === 429) {
				await new Promise((resolve) => setTimeout(resolve, 50));
				continue;
			}
			assert.equal(response.status, 200);
			(async () => { for await (const _ of response.body); })().catch(() => {}); // until it is ended
			streams.push(gone);
		}
		assert.equal((await fetch(url + "v1/page/events")).status, 429, "there are more than 16 streams");
		const tab = await visit();
		await tab.until("the page polls", () => document.querySelector("#link").textContent === "polling");
		for (const gone of streams) gone.abort();
		page.stdin.write("silence orders-7\n");
		await tab.until("the silent member is a problem, and the first member", () => [...document.querySelectorAll("#problems li.bad")].some((p) => p.innerText.includes("orders-7")) && document.querySelector("#members tr").innerText.includes("orders-7"));
		page.stdin.write("heal\n");
		await tab.until("no key is a problem", () => !document.querySelector("#problems").innerText.includes("key"));
		nothingLeftTheHost(tab, 5); // the browser logs the refused stream
		await stopPage();
		await tab.until("the page says that it is old", () => !document.querySelector("#cut").hidden);
		await startPage();
	});
}
