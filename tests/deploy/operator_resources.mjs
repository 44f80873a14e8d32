// Reads a JSON list of the Prometheus operator's resources from stdin; prints what their schemas refuse, a line each.
// The argument is the node_modules folder that has @kubernetes-models/prometheus-operator.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const models = await import(
  pathToFileURL(`${process.argv[2]}/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/index.js`)
);
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    new models[resource.kind](resource).validate();
  } catch (error) {
    console.log(`${resource.kind} ${resource.metadata.name}: ${error.message}`);
  }
}
