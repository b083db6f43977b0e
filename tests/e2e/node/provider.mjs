// A certified provider of OpenID Connect, which knows everybody under the name that they type.
// Arguments: where the packages are; the client's id. Prints its address, reads the client's redirect address, and
// prints the ID tokens that it gives. It ends with its input.
import { createServer } from 'node:http';

const [packages, client] = process.argv.slice(2);
const { Provider } = await import(`${packages}/oidc-provider/lib/index.js`);

// It would tell that its defaults are not for production.
console.info = console.warn = () => {};

function claims(name) {
  return { sub: name, email: `${name}@corp.example`, email_verified: true, groups: ['ml'] };
}

const server = createServer().listen(0, '127.0.0.1', () => {
  const address = `http://127.0.0.1:${server.address().port}`;
  console.log(address);
  process.stdin.on('end', () => process.exit());
  process.stdin.once('data', (redirect) => {
    const provider = new Provider(address, {
      clients: [{ client_id: client, redirect_uris: [String(redirect).trim()], token_endpoint_auth_method: 'none' }],
      claims: { email: ['email', 'email_verified'], groups: ['groups'] },
      conformIdTokenClaims: false,
      findAccount: (_, name) => ({ accountId: name, claims: () => claims(name) }),
      pkce: { required: () => true },
    });
    provider.on('grant.success', (context) => console.log(context.body.id_token));
    server.on('request', provider.callback());
  });
});
