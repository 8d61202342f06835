import "../charts/charts.css";
import "./dashboard.css";
import { render } from "preact";
import { App } from "./app.tsx";
import { followAddress } from "./router.ts";
import { begin } from "./store.ts";

followAddress();
begin();
const host = document.getElementById("app");
if (host) render(<App />, host);
