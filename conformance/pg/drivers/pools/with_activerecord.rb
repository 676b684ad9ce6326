# The story of common.py with ActiveRecord's pool.
require "active_record"
require "pg"

$stdout.sync = true
ActiveRecord::Base.establish_connection(
  adapter: "postgresql", host: ENV["HOST"], port: ENV["PORT"], database: ENV["DATABASE"], username: ENV["LOGIN"], password: ENV["PASSWORD"],
  pool: 1, checkout_timeout: 2, options: "-c fence.lease=#{ENV["LEASE"]}"
)
puts "driver\tActiveRecord #{ActiveRecord::VERSION::STRING}"
balance = ActiveRecord::Base.connection_pool.with_connection { |c| c.select_value("SELECT balance FROM orders") }
puts "read\t#{balance}"
$stdin.gets
8.times do
  ActiveRecord::Base.connection_pool.with_connection { |c| c.execute("UPDATE orders SET balance = #{balance + 1}") }
  puts "write\tok"
  break
rescue StandardError => e
  puts "write\t#{[e, e.cause].compact.map { |x| "#{x.class} #{x.message}" }.join("; ").split.join(" ")}"
  sleep 0.2
end
