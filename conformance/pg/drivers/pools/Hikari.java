import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.SQLException;

/** The story of common.py with HikariCP. */
public class Hikari {
    public static void main(String[] args) throws Exception {
        var env = System.getenv();
        var config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://" + env.get("HOST") + ":" + env.get("PORT") + "/" + env.get("DATABASE") + "?sslmode=disable");
        config.setUsername(env.get("LOGIN"));
        config.setPassword(env.get("PASSWORD"));
        config.setMaximumPoolSize(1);
        config.setConnectionTimeout(1500);
        config.addDataSourceProperty("options", "-c fence.lease=" + env.get("LEASE"));
        var version = "";
        try (var jars = java.nio.file.Files.newDirectoryStream(java.nio.file.Path.of("/usr/share/java"), "HikariCP-*.jar")) {
            for (var jar : jars) version = jar.getFileName().toString().replaceAll("HikariCP-|\\.jar", " ").strip();
        }
        System.out.println("driver\tHikariCP " + version);
        try (var pool = new HikariDataSource(config)) {
            int balance;
            try (var c = pool.getConnection(); var s = c.createStatement(); var rows = s.executeQuery("SELECT balance FROM orders")) {
                rows.next();
                balance = rows.getInt(1);
            }
            System.out.println("read\t" + balance);
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            for (int n = 0; n < 8; n++) {
                try (var c = pool.getConnection(); var s = c.createStatement()) {
                    s.executeUpdate("UPDATE orders SET balance = " + (balance + 1));
                    System.out.println("write\tok");
                    return;
                } catch (SQLException e) {
                    var said = new StringBuilder();
                    for (Throwable t = e; t != null; t = t.getCause())
                        said.append(t instanceof SQLException s ? s.getSQLState() + " " : "").append(t.getMessage()).append("; ");
                    System.out.println("write\t" + said.toString().replaceAll("\\s+", " "));
                    Thread.sleep(200);
                }
            }
        }
    }
}
