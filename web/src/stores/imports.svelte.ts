/** Files that the user drops or chooses to import, one after another, with the progress of each. */

import { imports as calls } from "../api/calls";
import type { ImportJob, ImportSourceList } from "../api/types";
import { ApiError } from "../api/client";
import { guessSource, HEAD_BYTES, OWN_SOURCE, toFileName } from "../lib/imports";
import { conversations } from "./conversations.svelte";
import { notices } from "./notices.svelte";

const POLL_MS = 500;

export interface ImportFile {
  file: File;
  /** Name of the program that wrote it; empty until one is chosen. */
  source: string;
  state: "waiting" | "uploading" | "importing" | "done" | "failed";
  job: ImportJob | null;
}

/** Imports an export of Quire; where its ID exists already, as a copy under another one. */
async function importOwnExport(file: File): Promise<boolean> {
  try {
    await calls.restore(file, null);
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 409)) throw error;
    await calls.restore(file, `copy-${Date.now().toString(36)}`);
  }
  return true;
}

class ImportStore {
  open = $state(false);
  files = $state.raw<ImportFile[]>([]);
  sources = $state.raw<ImportSourceList["items"]>([]);
  running = $state(false);

  /** Opens the dialog, with these files added. */
  async offer(files: readonly File[]): Promise<void> {
    this.open = true;
    if (this.sources.length === 0) {
      const others = (await notices.run(() => calls.sources()))?.items ?? [];
      this.sources = [{ name: OWN_SOURCE, title: "Quire" }, ...others];
    }
    const added = await Promise.all(
      files.map(async (file): Promise<ImportFile> => {
        const head = await file.slice(0, HEAD_BYTES).text().catch(() => "");
        return { file, source: guessSource(file.name, head) ?? "", state: "waiting", job: null };
      }),
    );
    this.files = [...this.files.filter((each) => each.state !== "done"), ...added];
  }

  choose(index: number, source: string): void {
    this.#update(index, { source });
  }

  remove(index: number): void {
    this.files = this.files.filter((_, other) => other !== index);
  }

  close(): void {
    this.open = false;
    if (!this.running) this.files = [];
  }

  /** Imports all files that wait, in order. */
  async start(): Promise<void> {
    if (this.running) return;
    this.running = true;
    for (let index = 0; index < this.files.length; index++) {
      const { state, source } = this.files[index]!;
      if (source && (state === "waiting" || state === "failed")) await this.#run(index);
    }
    this.running = false;
    await Promise.all([conversations.load(), conversations.loadOrigins()]);
  }

  async #run(index: number): Promise<void> {
    const { file, source } = this.files[index]!;
    this.#update(index, { state: "uploading", job: null });
    const done = await notices.run(async () => {
      if (source === OWN_SOURCE) return await importOwnExport(file);
      let job = await calls.start(source, toFileName(file.name), file);
      this.#update(index, { state: "importing", job });
      while (job.status === "running") {
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
        job = await calls.get(job.id);
        this.#update(index, { job });
      }
      return job.status === "done";
    });
    this.#update(index, { state: done ? "done" : "failed" });
  }

  #update(index: number, change: Partial<ImportFile>): void {
    this.files = this.files.map((each, other) => (other === index ? { ...each, ...change } : each));
  }
}

export const imports = new ImportStore();
