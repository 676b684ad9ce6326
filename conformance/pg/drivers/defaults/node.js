const { Client } = require("pg");

(async () => {
  console.log(`driver\tnode-postgres ${require("pg/package.json").version}`);
  for (const [way, where] of Object.entries({ variables: undefined, url: process.env.DATABASE_URL })) {
    const c = new Client(where);
    try {
      await c.connect();
      await c.query("INSERT INTO ledger VALUES ('node')");
      console.log(`${way}\tok`);
    } catch (e) {
      console.log(`${way}\t${e.code || e}`);
    } finally {
      await c.end();
    }
  }
})();
