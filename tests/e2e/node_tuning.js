// The Node client, unmodified, over the insecure gRPC port (spec/clients#recipes): tuning jobs created, listed in pages and cancelled.
// Arguments: the service's ready file, an image, a program, and where it writes a byte as it begins. Prints one line of JSON.
const fs = require('fs');
const { JobServiceClient } = require('@google-cloud/aiplatform').v1;
const { grpc } = require('google-gax');

const [ready, image, program, begun] = process.argv.slice(2);
const service = JSON.parse(fs.readFileSync(ready));
const parent = 'projects/node-tuning/locations/us-central1';
const insecure = { otherArgs: { headers: { authorization: `Bearer ${service.token}` } } };
const [apiEndpoint, port] = service.grpc.split(':');
const client = new JobServiceClient({
  apiEndpoint,
  port: Number(port),
  projectId: 'node-tuning',
  sslCreds: grpc.credentials.createInsecure(),
});

function tuningJob(displayName) {
  const containerSpec = { imageUri: image, command: ['python3', '-c', program] };
  const pool = { machineSpec: { machineType: 'n1-standard-4' }, replicaCount: 1, containerSpec };
  return {
    displayName,
    studySpec: {
      metrics: [{ metricId: 'score', goal: 'MAXIMIZE' }],
      parameters: [
        { parameterId: 'rate', doubleValueSpec: { minValue: 0.001, maxValue: 1 }, scaleType: 'UNIT_LOG_SCALE' },
        { parameterId: 'depth', integerValueSpec: { minValue: 1, maxValue: 8 } },
      ],
    },
    maxTrialCount: 4,
    parallelTrialCount: 2,
    trialJobSpec: { workerPoolSpecs: [pool] },
  };
}

async function main() {
  const seen = { created: [], listed: [], pages: 0 };
  for (const number of [0, 1, 2]) {
    const request = { parent, hyperparameterTuningJob: tuningJob(`node-${number}`) };
    const [made] = await client.createHyperparameterTuningJob(request, insecure);
    seen.created.push(made.name);
  }
  let pageToken = '';
  do {
    const question = { parent, filter: 'display_name:"node-*"', pageSize: 2, pageToken };
    const options = { ...insecure, autoPaginate: false };
    const [jobs, , answer] = await client.listHyperparameterTuningJobs(question, options);
    seen.listed.push(...jobs.map((each) => each.name));
    seen.pages += 1;
    pageToken = answer.nextPageToken;
  } while (pageToken);
  // Two trials of each job say that they have begun.
  const pipe = fs.openSync(begun, 'r+');
  for (let left = 6; left > 0; left -= 1) fs.readSync(pipe, Buffer.alloc(1));
  const [running] = await client.getHyperparameterTuningJob({ name: seen.created[0] }, insecure);
  seen.trials = running.trials.map((each) => [each.id, each.state]);
  seen.given = running.trials[0].parameters.map((each) => [each.parameterId, each.value.kind]);
  for (const name of seen.created) await client.cancelHyperparameterTuningJob({ name }, insecure);
  console.log(JSON.stringify(seen));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
