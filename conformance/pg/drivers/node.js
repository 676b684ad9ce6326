// Where to connect, and the grant, come by the environment; prints a line for each case: its name, and ok or the SQLSTATE.
const { Client } = require("pg");
const env = process.env;
const options = env.TOKEN ? `-c fence.resource=${env.RESOURCE} -c fence.token=${env.TOKEN}` : undefined;

async function connected(f, where) {
  const c = new Client(where);
  await c.connect();
  try {
    await f(c);
  } finally {
    await c.end();
  }
}

// What DEFAULTS asks for: to write with only what `fencegate run` gives.
const defaults = { variables: undefined, url: env.DATABASE_URL };
const here = { host: env.HOST, port: +env.PORT, database: env.DATABASE, user: env.LOGIN, password: env.PASSWORD, ssl: false, options };

const cases = {
  simple: (c, row) => c.query(`INSERT INTO ledger VALUES ('${row}')`),
  extended: (c, row) => c.query("INSERT INTO ledger VALUES ($1)", [row]),
  prepared: async (c, row) => {
    for (let n = 0; n < 3; n++) await c.query({ name: "one", text: "INSERT INTO ledger VALUES ($1)", values: [`${row} ${n}`] });
  },
  several: (c, row) => Promise.all(Array.from({ length: 100 }, (_, n) => c.query("INSERT INTO ledger VALUES ($1)", [`${row} ${n}`]))),
  reading: async (c) => {
    const { rows } = await c.query("SELECT * FROM generate_series(1, 100000)");
    if (rows.length !== 100000) throw new Error(`${rows.length} rows`);
  },
};

(async () => {
  console.log(`driver\tnode-postgres ${require("pg/package.json").version}`);
  for (const name in env.DEFAULTS ? defaults : cases) {
    try {
      await connected((c) => (cases[name] || cases.simple)(c, `node ${name}`), env.DEFAULTS ? defaults[name] : here);
      console.log(`${name}\tok`);
    } catch (e) {
      console.log(`${name}\t${e.code || e}`);
    }
  }
})();
