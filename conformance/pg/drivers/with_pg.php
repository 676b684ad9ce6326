<?php
echo "driver\tPHP pgsql ", PHP_VERSION, "\n";
foreach (["variables" => "", "url" => getenv("DATABASE_URL")] as $way => $where) {
    $c = @pg_connect($where, PGSQL_CONNECT_FORCE_NEW);
    if (!$c) {
        echo "$way\t", error_get_last()["message"], "\n";
        continue;
    }
    pg_send_query($c, "INSERT INTO ledger VALUES ('php')");
    echo "$way\t", pg_result_error_field(pg_get_result($c), PGSQL_DIAG_SQLSTATE) ?: "ok", "\n";
}
