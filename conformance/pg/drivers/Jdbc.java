import java.io.ByteArrayInputStream;
import java.io.OutputStream;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.postgresql.PGConnection;

/** Where to connect, and the grant, come by the environment; prints a line for each case: its name, and ok or the SQLSTATE. */
public class Jdbc {
    interface Case { void run(String row) throws Exception; }

    static Connection connect(String mode) throws SQLException {
        Map<String, String> env = System.getenv();
        Properties p = new Properties();
        p.setProperty("user", env.get("LOGIN"));
        p.setProperty("password", env.get("PASSWORD"));
        p.setProperty("sslmode", "disable");
        p.setProperty("preferQueryMode", mode);
        p.setProperty("prepareThreshold", "1");
        if (!env.getOrDefault("TOKEN", "").isEmpty())
            p.setProperty("options", "-c fence.resource=" + env.get("RESOURCE") + " -c fence.token=" + env.get("TOKEN"));
        return DriverManager.getConnection("jdbc:postgresql://" + env.get("HOST") + ":" + env.get("PORT") + "/" + env.get("DATABASE"), p);
    }

    static void insert(String mode, String row, int times) throws SQLException {
        try (Connection c = connect(mode); var s = c.prepareStatement("INSERT INTO ledger VALUES (?)")) {
            for (int n = 0; n < times; n++) {
                s.setString(1, row + " " + n);
                s.executeUpdate();
            }
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, Case> cases = new LinkedHashMap<>();
        if (System.getenv("DEFAULTS") != null) { // to write with only what `fencegate run` gives
            cases.put("url", row -> {
                try (Connection c = DriverManager.getConnection(System.getenv("JDBC_URL")); var s = c.createStatement()) {
                    s.executeUpdate("INSERT INTO ledger VALUES ('java')");
                }
            });
            run(cases);
            return;
        }
        cases.put("simple", row -> insert("simple", row, 1));
        cases.put("extended", row -> insert("extended", row, 1));
        cases.put("prepared", row -> insert("extended", row, 3));
        cases.put("pipelined", row -> {
            try (Connection c = connect("extended"); var s = c.prepareStatement("INSERT INTO ledger VALUES (?)")) {
                for (int n = 0; n < 1000; n++) {
                    s.setString(1, row + " " + n);
                    s.addBatch();
                }
                s.executeBatch();
            }
        });
        cases.put("copy", row -> {
            try (Connection c = connect("extended")) {
                c.unwrap(PGConnection.class).getCopyAPI().copyIn("COPY ledger FROM STDIN", new ByteArrayInputStream((row + "\n").repeat(1000).getBytes()));
            }
        });
        cases.put("reading", row -> {
            try (Connection c = connect("extended")) {
                long n = c.unwrap(PGConnection.class).getCopyAPI().copyOut("COPY (SELECT * FROM generate_series(1, 100000)) TO STDOUT", OutputStream.nullOutputStream());
                if (n != 100000) throw new Exception(n + " rows");
            }
        });
        run(cases);
    }

    static void run(Map<String, Case> cases) {
        System.out.println("driver\tJDBC " + org.postgresql.Driver.class.getPackage().getImplementationVersion());
        for (var one : cases.entrySet()) {
            String outcome = "ok";
            try {
                one.getValue().run("JDBC " + one.getKey());
            } catch (SQLException e) {
                outcome = e.getSQLState();
            } catch (Exception e) {
                outcome = e.toString();
            }
            System.out.println(one.getKey() + "\t" + outcome);
        }
    }
}
