output "remote" {
  description = "Pass it to programs as TIERED_REMOTE."
  value       = module.bucket.url
}

output "bucket_policy" {
  description = "The bucket policy, as JSON."
  value       = module.bucket.policy
}

output "policies" {
  description = "Policy documents by role."
  value       = module.roles.policies
}

output "policy_arns" {
  description = "Policies to attach to users or roles of your own."
  value       = module.roles.policy_arns
}

output "role_arns" {
  description = "Roles that were made."
  value       = module.roles.role_arns
}
