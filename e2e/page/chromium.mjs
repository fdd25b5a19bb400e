// Drives a headless Chromium by the DevTools protocol over a pipe: no port, no library.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const answerMax = 300_000; // ms for one call: on a busy machine an evaluation of the whole page takes more than a minute

export class Chromium {
	#calls = new Map();
	#next = 1;
	#listeners = [];

	constructor(program) {
		this.folder = mkdtempSync(join(tmpdir(), "page-"));
		this.process = spawn(program, [
			"--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb", "--user-data-dir=" + this.folder, "about:blank",
		], { stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"], env: { ...process.env, HOME: this.folder } });
		this.errors = "";
		this.process.stderr.on("data", (text) => { this.errors = (this.errors + text).slice(-4000); });
		let rest = Buffer.alloc(0);
		this.process.stdio[4].on("data", (data) => {
			rest = Buffer.concat([rest, data]);
			for (let end = rest.indexOf(0); end >= 0; end = rest.indexOf(0)) {
				this.#heard(JSON.parse(rest.subarray(0, end)));
				rest = rest.subarray(end + 1);
			}
		});
		this.ended = new Promise((resolve) => this.process.once("exit", resolve));
		this.ended.then(() => {
			for (const call of this.#calls.values()) call.reject(new Error("Chromium has ended: " + this.errors));
		});
	}

	#heard(message) {
		const call = this.#calls.get(message.id);
		this.#calls.delete(message.id);
		if (call && message.error) call.reject(new Error(call.method + ": " + message.error.message));
		else if (call) call.resolve(message.result);
		else for (const listener of this.#listeners) listener(message);
	}

	on(listener) {
		this.#listeners.push(listener);
	}

	call(method, params = {}, sessionId = undefined) {
		return new Promise((resolve, reject) => {
			const id = this.#next++;
			const clock = setTimeout(() => reject(new Error(method + ": no answer. " + this.errors)), answerMax);
			this.#calls.set(id, { method, resolve: (v) => (clearTimeout(clock), resolve(v)), reject: (e) => (clearTimeout(clock), reject(e)) });
			this.process.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
		});
	}

	// open returns a new tab, which notes all that it requests and everything that goes wrong in it.
	async open() {
		const { targetId } = await this.call("Target.createTarget", { url: "about:blank" });
		const { sessionId } = await this.call("Target.attachToTarget", { targetId, flatten: true });
		const tab = new Tab(this, sessionId);
		await Promise.all(["Page.enable", "Runtime.enable", "Network.enable", "Log.enable"].map((method) => tab.call(method)));
		return tab;
	}

	async close() {
		await this.call("Browser.close").catch(() => {});
		await this.ended;
		rmSync(this.folder, { recursive: true, force: true, maxRetries: 100, retryDelay: 100 }); // its children may still write
	}
}

class Tab {
	requests = []; // addresses
	faults = []; // exceptions, and what the browser refuses

	constructor(browser, session) {
		this.browser = browser;
		this.session = session;
		browser.on((message) => {
			if (message.sessionId !== session) return;
			const { method, params } = message;
			if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
			if (method === "Runtime.exceptionThrown") this.faults.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
			if (method === "Log.entryAdded" && params.entry.level === "error") this.faults.push(params.entry.text + " " + (params.entry.url ?? ""));
			if (method === "Page.javascriptDialogOpening") this.faults.push("a dialog of the script: " + params.message);
		});
	}

	call(method, params) {
		return this.browser.call(method, params, this.session);
	}

	// run evaluates a function in the page, with arguments that are JSON, and returns its result.
	async run(f, ...args) {
		const expression = typeof f === "string" ? f : `(${f})(...${JSON.stringify(args)})`;
		const { result, exceptionDetails } = await this.call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
		if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
		return result.value;
	}

	// until waits until a function of the page is true.
	async until(what, f, ...args) {
		for (const end = Date.now() + answerMax; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
			const value = await this.run(f, ...args);
			if (value) return value;
			if (Date.now() > end) throw new Error("waited in vain until " + what + "; the page says:\n" + (await this.run(() => document.body.innerText)).slice(0, 1500));
		}
	}

	async screen(width, height, scheme, scale = 1) {
		await this.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: scale, mobile: width < 600 });
		await this.call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: "reduce" }] });
	}

	async press(key, options = {}) {
		const codes = { Tab: 9, Enter: 13, Escape: 27 };
		const text = key === "Enter" ? "\r" : undefined;
		await this.call("Input.dispatchKeyEvent", { type: "keyDown", key, code: key, windowsVirtualKeyCode: codes[key], text, modifiers: options.shift ? 8 : 0 });
		await this.call("Input.dispatchKeyEvent", { type: "keyUp", key, code: key, windowsVirtualKeyCode: codes[key] });
	}

	type(text) {
		return this.call("Input.insertText", { text });
	}

	// click clicks where an element is, as a mouse does: what lies above it gets the click. A refresh of the page may have moved the element meanwhile;
	// then it tries again.
	async click(selector) {
		for (let tries = 0; tries < 10; tries++) {
			const at = await this.run((s) => {
				const node = document.querySelector(s);
				globalThis.hit = false;
				node.addEventListener("click", () => { globalThis.hit = true; }, { once: true });
				node.scrollIntoView({ block: "center" });
				const box = node.getBoundingClientRect();
				return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
			}, selector);
			for (const type of ["mousePressed", "mouseReleased"]) await this.call("Input.dispatchMouseEvent", { type, ...at, button: "left", clickCount: 1 });
			if (await this.run(() => globalThis.hit)) return;
		}
		throw new Error("another element than " + selector + " gets the clicks");
	}

	async picture() {
		const { data } = await this.call("Page.captureScreenshot", { format: "png" });
		return Buffer.from(data, "base64");
	}
}
