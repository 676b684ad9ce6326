package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencegate/fencegate/wire"
)

// wrapper runs the AWS command line with an endpoint option. Its versions before 2.13 ignore AWS_ENDPOINT_URL_S3 and
// would send the lease's credentials to AWS.
const wrapper = `#!/bin/sh
# fencegate run: versions of aws before 2.13 do not read AWS_ENDPOINT_URL_S3.
for argument; do
  case $argument in
    --endpoint-url | --endpoint-url=*) exec %[1]s "$@" ;;
  esac
done
for argument; do
  case $argument in
    s3 | s3api) exec %[1]s --endpoint-url "$AWS_ENDPOINT_URL_S3" "$@" ;;
  esac
done
exec %[1]s "$@"
`

// remoteRclone begins the variables that define a remote of rclone
// named fencegate, besides those in the command's own configuration.
const remoteRclone = "RCLONE_CONFIG_FENCEGATE_"

// rcloneRemote returns the variables of that remote. Its credentials come from the SDKs' sources.
func rcloneRemote(issued wire.Credentials) map[string]string {
	return map[string]string{
		remoteRclone + "TYPE": "s3", remoteRclone + "PROVIDER": "Other", remoteRclone + "ENV_AUTH": "true",
		remoteRclone + "ENDPOINT": issued.EndpointURL, remoteRclone + "REGION": issued.Region,
	}
}

// toolFolder is a private folder for files while the command runs.
type toolFolder struct {
	home      string   // "": none
	inherited []string // the variables that the command inherits
	say       func(format string, args ...any)
}

// write makes the files that direct S3 tools to the gateway, and returns the variables that name
// them: a configuration for AWS's tools, one for s3cmd, and a wrapper if the command would find the AWS command line.
// They contain no secret.
func (t toolFolder) write(issued wire.Credentials) (map[string]string, error) {
	set, err := t.writeAWS(issued)
	if err != nil {
		return nil, err
	}
	scheme, host, _ := strings.Cut(issued.EndpointURL, "://")
	host = strings.TrimSuffix(host, "/")
	// host_bucket without % means path-style buckets. s3cmd reads its credentials from the variables of static ones.
	text := fmt.Sprintf("[default]\nhost_base = %[1]s\nhost_bucket = %[1]s\nuse_https = %[2]t\nbucket_location = %[3]s\n", host, scheme == "https", issued.Region)
	config := filepath.Join(t.home, "s3cfg")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("configuration for s3cmd: %w", err)
	}
	set["S3CMD_CONFIG"] = config
	return set, nil
}

// writeAWS makes the files for AWS's tools. The endpoint applies to S3 only; other services are unchanged. Without a
// version of the signature, botocore signs URLs with version 2 wherever the endpoint is not AWS's.
func (t toolFolder) writeAWS(issued wire.Credentials) (map[string]string, error) {
	config := filepath.Join(t.home, "config")
	text := fmt.Sprintf("[default]\nregion = %s\nservices = fencegate\ns3 =\n  addressing_style = path\n  signature_version = s3v4\n\n[services fencegate]\ns3 =\n  endpoint_url = %s\n", issued.Region, issued.EndpointURL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("configuration for S3 tools: %w", err)
	}
	set := map[string]string{"AWS_CONFIG_FILE": config}
	path := variable(t.inherited, "PATH")
	aws := inPath(path, "aws")
	if aws == "" {
		return set, nil
	}
	bin := filepath.Join(t.home, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return nil, fmt.Errorf("wrapper of aws: %w", err)
	}
	quoted := "'" + strings.ReplaceAll(aws, "'", `'\''`) + "'"
	if err := os.WriteFile(filepath.Join(bin, "aws"), fmt.Appendf(nil, wrapper, quoted), 0o700); err != nil { //nolint:gosec // it is to be run
		return nil, fmt.Errorf("wrapper of aws: %w", err)
	}
	set["PATH"] = bin + string(os.PathListSeparator) + path
	if inPath(set["PATH"], "aws") == aws { // a file system that is mounted noexec
		t.say("warning: no program can be run in %s, so aws is not wrapped; its versions before 2.13 send their requests to AWS: set TMPDIR to a folder where programs can be run", filepath.Dir(t.home))
		delete(set, "PATH")
	}
	return set, nil
}
