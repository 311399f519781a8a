/** Saves the body of a response as a file. */

const UNSAFE_CHARS = /[^\p{L}\p{N}._-]+/gu;
const MAX_NAME_CHARS = 80;

/** A file name from a title. */
export function toDownloadName(title: string, ending: string): string {
  const name = title.trim().replace(UNSAFE_CHARS, "-").slice(0, MAX_NAME_CHARS).replace(/^[-.]+|[-.]+$/g, "");
  return `${name || "conversation"}.${ending}`;
}

export async function saveResponse(response: Response, name: string): Promise<void> {
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
