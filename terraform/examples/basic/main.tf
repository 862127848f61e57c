# One bucket, one log at logs/ in it, and the three policies; a role for the application that writes.

provider "aws" {
  region = var.region
}

data "aws_caller_identity" "me" {}

module "bucket" {
  source = "../../modules/bucket"

  name        = var.bucket
  prefix      = "logs/"
  kms_key_arn = var.kms_key_arn
}

module "roles" {
  source = "../../modules/roles"

  name        = var.bucket
  bucket_arn  = module.bucket.arn
  prefix      = module.bucket.prefix
  kms_key_arn = module.bucket.kms_key_arn
  trusted     = { writer = [data.aws_caller_identity.me.arn] }
}
