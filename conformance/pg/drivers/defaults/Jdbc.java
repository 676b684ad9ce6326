import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

public class Jdbc {
    public static void main(String[] args) {
        System.out.println("driver\tJDBC " + org.postgresql.Driver.class.getPackage().getImplementationVersion());
        try (Connection c = DriverManager.getConnection(System.getenv("JDBC_URL")); var s = c.createStatement()) {
            s.executeUpdate("INSERT INTO ledger VALUES ('java')");
            System.out.println("url\tok");
        } catch (SQLException e) {
            System.out.println("url\t" + e.getSQLState());
        }
    }
}
