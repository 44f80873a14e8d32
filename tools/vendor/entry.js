export { select } from "d3-selection";
export { default as flamegraph } from "d3-flame-graph";
export { default as uPlot } from "uplot";
import "uplot/dist/uPlot.min.css";
