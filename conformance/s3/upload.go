package main

import (
	"context"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
)

// upload puts standard input, a file, to $KEY of $BUCKET, using aws-sdk-go-v2 with its defaults.
func upload(ctx context.Context) error {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	_, err = awss3.NewFromConfig(cfg).PutObject(ctx, &awss3.PutObjectInput{Bucket: aws.String(os.Getenv("BUCKET")), Key: aws.String(os.Getenv("KEY")), Body: os.Stdin})
	return err
}
