use strict;
use warnings;
use DBI;

print "driver\tDBD::Pg " . DBI->install_driver("Pg")->{Version} . "\n";
my $db = DBI->connect("dbi:Pg:", undef, undef, { PrintError => 0, RaiseError => 0, AutoCommit => 1 });
my $ok = $db && $db->do("INSERT INTO ledger VALUES ('perl')");
print "variables\t" . ($ok ? "ok" : $db ? $db->state : $DBI::errstr) . "\n";
