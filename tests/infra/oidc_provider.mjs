// A real identity provider for tests: `oidc-provider` on loopback, with people who sign in by name, without a password.
// Arguments: the package's folder, the port, the redirect URI. Commands arrive as JSON lines on standard input.
import { createRequire } from 'node:module';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { generateKeyPairSync } from 'node:crypto';

const [folder, port, redirectUri] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')).href);
const issuer = `http://127.0.0.1:${port}`;
const groups = {};
const blocked = new Set();
let isDown = false;
let lifetimes = { IdToken: 3600 };
let handler;

const makeKey = (number) => ({
  ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }),
  use: 'sig', alg: 'RS256', kid: `key-${number}`,
});
const makeClient = (id, extra) => ({
  client_id: id, redirect_uris: [redirectUri], post_logout_redirect_uris: [new URL('/auth/out', redirectUri).href],
  grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'], ...extra,
});

function start(keyNumber) {
  const provider = new Provider(issuer, {
    clients: [
      makeClient('quire', { client_secret: 'a secret & more' }),
      makeClient('another', { client_secret: 'another secret' }),
      makeClient('public', { token_endpoint_auth_method: 'none' }),
    ],
    jwks: { keys: [makeKey(keyNumber)] },
    cookies: { keys: ['a key of the tests'] },
    claims: { openid: ['sub'], profile: ['name'], email: ['email'], groups: ['groups'] },
    scopes: ['openid', 'profile', 'email', 'groups', 'offline_access'],
    features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true }, rpInitiatedLogout: { enabled: true } },
    pkce: { required: () => true },
    issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
    ttl: { IdToken: lifetimes.IdToken, AccessToken: 3600, RefreshToken: 86400, Session: 86400, Grant: 86400, Interaction: 600, DeviceCode: 600 },
    findAccount: async (_, id) => blocked.has(id) ? undefined : {
      accountId: id,
      claims: async () => ({ sub: id, name: id, email: `${id}@example.org`, groups: groups[id] ?? [] }),
    },
  });
  handler = provider.callback();
}

let keyNumber = 1;
start(keyNumber);
const server = createServer((request, response) => {
  if (isDown) { request.socket.destroy(); return; }
  handler(request, response);
});
server.listen(Number(port), '127.0.0.1', () => console.log('ready'));
createInterface({ input: process.stdin }).on('line', (line) => {
  const command = JSON.parse(line);
  if (command.groups) Object.assign(groups, command.groups);
  if (command.block) blocked.add(command.block);
  if ('down' in command) isDown = command.down;
  if (command.rotate) start(++keyNumber);
  console.log('done');
}).on('close', () => process.exit(0));
