require "pg"

puts "driver\truby-pg #{PG::VERSION}"
{ "variables" => [], "url" => [ENV["DATABASE_URL"]] }.each do |way, where|
  begin
    PG.connect(*where) { |c| c.exec("INSERT INTO ledger VALUES ('ruby')") }
    puts "#{way}\tok"
  rescue PG::Error => e
    puts "#{way}\t#{e.respond_to?(:result) && e.result&.error_field(PG::PG_DIAG_SQLSTATE) || e.message.inspect}"
  end
end
