// The Node client, unmodified, over both ports (spec/clients#recipes): create, get, list in pages, cancel, delete, and errors.
// Argument: the service's file service.json. Prints one line of JSON with what it saw.
const fs = require('fs');
const { JobServiceClient } = require('@google-cloud/aiplatform').v1;
const { OAuth2Client } = require('google-auth-library');
const { grpc } = require('google-gax');

const service = JSON.parse(fs.readFileSync(process.argv[2]));
const image = process.argv[3];
const parent = 'projects/node-project/locations/us-central1';
const insecure = { otherArgs: { headers: { authorization: `Bearer ${service.token}` } } };

function client(address, more) {
  const [apiEndpoint, port] = address.split(':');
  return new JobServiceClient({ apiEndpoint, port: Number(port), projectId: 'node-project', ...more });
}

function job(displayName, spec) {
  const pool = { machineSpec: { machineType: 'n1-standard-4' }, replicaCount: 1, ...spec };
  return { displayName, jobSpec: { workerPoolSpecs: [pool] } };
}

function program(text) {
  return { containerSpec: { imageUri: image, command: ['python3', '-c', text] } };
}

async function refused(call) {
  try {
    await call();
  } catch (error) {
    const fields = (error.statusDetails || []).flatMap((each) => each.fieldViolations || []).map((v) => v.field);
    return { code: error.code, message: error.message, fields };
  }
  return null;
}

async function main() {
  const seen = { created: [], listed: [], pages: 0 };
  const plain = client(service.grpc, { sslCreds: grpc.credentials.createInsecure() });
  // Over TLS as it is usual, with roots from GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
  const authClient = new OAuth2Client();
  authClient.setCredentials({ access_token: service.token });
  const secure = client(service.grpc_tls, { authClient });

  for (const number of [0, 1, 2]) {
    const request = { parent, customJob: job('node', program('import time; time.sleep(600)')) };
    const [made] = number ? await secure.createCustomJob(request) : await plain.createCustomJob(request, insecure);
    seen.created.push(made.name);
  }
  let pageToken = '';
  do {
    const question = { parent, filter: 'display_name="node"', pageSize: 2, pageToken };
    const [jobs, , answer] = await plain.listCustomJobs(question, { ...insecure, autoPaginate: false });
    seen.listed.push(...jobs.map((each) => each.name));
    seen.pages += 1;
    pageToken = answer.nextPageToken;
  } while (pageToken);
  for (const name of seen.created) await plain.cancelCustomJob({ name }, insecure);
  let state = '';
  do {
    const [found] = await secure.getCustomJob({ name: seen.created[0] });
    state = found.state;
    await new Promise((resolve) => setTimeout(resolve, 20));
  } while (!['JOB_STATE_CANCELLED', 'JOB_STATE_FAILED', 'JOB_STATE_SUCCEEDED'].includes(state));
  seen.state = state;
  const [deletion] = await secure.deleteCustomJob({ name: seen.created[0] });
  await deletion.promise();
  seen.gone = await refused(() => secure.getCustomJob({ name: seen.created[0] }));
  seen.wrong = await refused(() => secure.createCustomJob({ parent, customJob: { displayName: '', jobSpec: {} } }));
  const packageUris = Array.from({ length: 90 }, (_, n) => `gs://missing-bucket-${n}/${'x'.repeat(100)}.tar.gz`);
  const spec = { pythonPackageSpec: { executorImageUri: image, pythonModule: 'a.b', packageUris } };
  seen.long = await refused(() => secure.createCustomJob({ parent, customJob: job('long', spec) }));
  console.log(JSON.stringify(seen));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
